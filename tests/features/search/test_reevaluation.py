"""``reevaluate`` of a search: what the best come to from a declared start, on fresh seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from trial_helpers import Told, point_of, search_run

from orchestrator.analysis import statistics
from orchestrator.core.errors import SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import run_directory
from orchestrator.features.search import (
    ranking,
    report_data,
)
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.ledger import Ledger

SPACE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def searched(
    place: Path, reevaluate: Any, settings: Mapping[str, Any] | None = None, **search: Any
) -> Experiment:
    table = {"space": SPACE, "trials": 20, "sampler": "random", "reevaluate": reevaluate, **search}
    job = {**HOPPER, "task": "forward", "total_timesteps": 100_000, "seeds": [0, 1]}
    job |= settings or {}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


@pytest.mark.parametrize(
    ("reevaluate", "where"),
    [
        ({"seeds": 5}, "search.reevaluate.n"),
        ({"n": 2, "sedes": 2}, "search.reevaluate.sedes"),
        (True, "search.reevaluate"),
    ],
    ids=["no number", "unknown key", "truth"],
)
def test_a_bad_reevaluation_is_named(place: Path, reevaluate: Any, where: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, reevaluate)
    assert [problem.where for problem in error.value.problems] == [where]


def test_the_values_that_are_shown_are_those_of_the_fresh_seeds(tmp_path: Path) -> None:
    told = [
        Told(values=[3.0]),
        Told(values=[9.0]),
        Told(values=[8.0]),
        Told(values=[2.0], reevaluates=1, point=point_of(1)),
        Told(values=[5.0], reevaluates=2, point=point_of(2)),
        Told(values=[4.0], role="reference"),
    ]
    paths = search_run(tmp_path / "run", told)
    shown = json.loads(commands.succeed("best", paths.root, "--json", cwd=tmp_path).stdout)
    rows = [(row["trial"], row["role"], row["values"]["eval_mean"]) for row in shown]
    assert rows == [(2, None, 5.0), (5, "reference", 4.0), (1, None, 2.0), (0, None, 3.0)]
    assert [row["in_search"] for row in shown[:2]] == [{"eval_mean": 8.0}, None]
    status = " ".join(commands.invoke("status", paths.root, cwd=tmp_path).stdout.split())
    assert "trained again: 5.0 (trial 2), the unchanged job 4.0" in status
    assert reported(paths)["best"] == [2, 1, 0]


def test_the_mean_over_fresh_seeds_has_an_interval(tmp_path: Path) -> None:
    """Of 2, 4 and 6: 4 ± 4.303 · 2 / √3."""
    told = [
        Told(values=[9.0]),
        Told(values=[8.0]),
        Told(values=[4.0], reevaluates=0, point=point_of(0)),
    ]
    paths = search_run(tmp_path / "run", told, seeds=[0, 1, 2], objective="ep_rew_mean")
    set_returns(paths, [f"hopper-t00002-s{seed}" for seed in range(3)], [2.0, 4.0, 6.0])
    first, second = ranking.read(paths.root, 2).facts()
    mean = first["fresh_means"]["ep_rew_mean"]
    assert (mean["value"], mean["n"]) == (4.0, 3)
    assert (mean["low"], mean["high"]) == pytest.approx((-0.968, 8.968), abs=1e-3)
    assert second["fresh_means"] is None, "its seeds have chosen it"
    assert reported(paths)["trials"][0]["fresh_means"] == [mean]


def test_the_best_is_compared_with_the_unchanged_job_over_the_same_fresh_seeds(
    tmp_path: Path,
) -> None:
    """2, 4, 6 and 8 against 1, 2, 3 and 4."""
    told = [
        Told(values=[9.0]),
        Told(values=[4.0], reevaluates=0, point=point_of(0)),
        Told(values=[2.0], role="reference"),
    ]
    paths = search_run(tmp_path / "run", told, seeds=[0, 1, 2, 3], objective="ep_rew_mean")
    seeds_of_reference = ranking.read(paths.root, 2).facts()[1]["jobs"]
    set_returns(paths, [f"hopper-t00001-s{seed}" for seed in range(4)], [2.0, 4.0, 6.0, 8.0])
    set_returns(paths, seeds_of_reference, [1.0, 2.0, 3.0, 4.0])
    expected = dataclasses.asdict(statistics.compare([[1, 2, 3, 4]], [[2, 4, 6, 8]]))
    assert expected["difference"]["value"] == 2.5
    shown, reference = ranking.read(paths.root, 2).facts()
    assert shown["against_reference"] == {"ep_rew_mean": expected}
    assert reference["against_reference"] is None


def set_returns(paths: RunPaths, jobs: Sequence[str], returns: Sequence[float]) -> None:
    pairs = zip(jobs, returns, strict=True)
    with contextlib.closing(Ledger.open(paths.ledger)) as ledger:
        ledger.set_progress([(job_id, 1000, one, None, None) for job_id, one in pairs])


def reported(paths: RunPaths) -> report_data.SearchFacts:
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        facts = report_data.gather(paths, ledger)
    assert facts is not None
    return facts


def specs(run_dir: Path, job_ids: list[str]) -> dict[str, WorkerSpec]:
    return {
        job_id: WorkerSpec.from_json((run_dir / "jobs" / job_id / "spec.json").read_text())
        for job_id in job_ids
    }


@pytest.mark.nightly
def test_the_best_and_the_unchanged_job_are_trained_again_with_the_same_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text(
        f'name = "search"\nmax_parallel = 2\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\n'
        'resources.start = "exec"\n'
        '[search]\nsampler = "random"\ntrials = 4\nobjective = "ep_rew_mean"\n'
        "reevaluate = { n = 2, seeds = 3, total_timesteps = 1024, reference = true }\n"
        '[search.space]\n"ppo.learning_rate" = { low = 1e-4, high = 1e-2, log = true }\n'
        "[search.scheduler]\nmin_env_steps = 128\n"
    )
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows: Mapping[str, Any] = commands.summary(tmp_path / "run")
    again = [job_id for job_id in rows if int(job_id.rpartition("-s")[2]) >= 1000]
    assert len(again) == 9
    found = specs(tmp_path / "run", again)
    assert {spec.seed for spec in found.values()} == {1000, 1001, 1002}
    assert {(spec.total_timesteps, spec.pause_at, spec.init) for spec in found.values()} == {
        (1024, None, None)
    }
    reference = [spec for job_id, spec in found.items() if "reference" in job_id]
    assert len(reference) == 3
    assert all("learning_rate" not in spec.hyperparameters for spec in reference)

    # The same again does nothing, and another protocol is trained in place of the first.
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert len(commands.summary(tmp_path / "run")) == len(rows)
    jobs.write_text(jobs.read_text().replace("total_timesteps = 1024", "total_timesteps = 512"))
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert len(commands.summary(tmp_path / "run")) == len(rows) + 9
    reader = TrialReader.of(RunPaths(tmp_path / "run"))
    assert reader is not None
    with run_directory.opened_ledger(reader.paths, read_only=True) as ledger:
        reader.update(ledger)
    assert len(reader.repeated) == 2
    assert {
        trial.protocol["total_timesteps"] for trial in reader.repeated.values() if trial.protocol
    } == {512}
