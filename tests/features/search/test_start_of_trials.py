"""``start`` of a search: what the policies of all trials begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from trial_helpers import Told, search_run

from orchestrator.core.errors import SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import search_events, search_time
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import Experiment, from_mapping

SPACE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
RUNGS = {"min_env_steps": 50_000}


def searched(place: Path, **search: Any) -> Experiment:
    table = {"space": SPACE, "trials": 20, "sampler": "random", **search}
    job = {**HOPPER, "task": "forward", "total_timesteps": 200_000, "seeds": [0, 1]}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def test_another_start_is_another_search(place: Path) -> None:
    before = searched(place).declaration
    changed = written.differences(before, searched(place, start="best").declaration)
    assert changed == ['search.start: "nothing" → "best"']
    assert written.differences(before, searched(place, start="nothing").declaration) == []


def test_the_reference_is_one_job_more(place: Path) -> None:
    experiment = searched(place, start="reference")
    source = declaration_of(experiment)
    limits = source.limits(experiment)
    assert (limits.trials, limits.jobs, limits.env_steps) == (20, 41, 41 * 200_000)
    assert any("policy of the unchanged job" in line for line in source.lines(experiment))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("unknown", {"start": "parent"}, 'search.start: expected one of "nothing", "reference"'),
    (
        "another network",
        {
            "start": "reference",
            "space": {"policy_kwargs.net_arch": {"choices": [[32], [64]]}},
        },
        'search.space."policy_kwargs.net_arch": varies the network',
    ),
]


@pytest.mark.parametrize(("search", "message"), [row[1:] for row in BAD], ids=[r[0] for r in BAD])
def test_a_bad_start_is_named(place: Path, search: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, **search)
    assert message in str(error.value)


def test_rungs_that_would_compare_lineages_are_a_warning(place: Path) -> None:
    for start in ("nearest", "best"):
        (warning,) = searched(place, start=start, scheduler=RUNGS).warnings
        assert "lineages of unequal length" in warning
        assert not searched(place, start=start).warnings
        assert not searched(place, start=start, scheduler={"kind": "none"}).warnings
    for start in ("nothing", "reference"):
        assert not searched(place, start=start, scheduler=RUNGS).warnings


@pytest.mark.usefixtures("undrawn")
def test_the_training_that_all_start_from_is_no_trial(tmp_path: Path) -> None:
    point = {"ppo.learning_rate": 0.001}
    told = [
        Told(values=[7.0], role="start"),
        Told(values=[3.0], parent=0, point=point),
        Told(values=[4.0], parent=0, point={"ppo.learning_rate": 0.002}),
    ]
    paths = search_run(
        tmp_path / "run", told, start="reference", space=SPACE, starts_from="hopper-start-s0"
    )
    shown = json.loads(commands.succeed("best", paths.root, "--json", cwd=tmp_path).stdout)
    assert [(row["trial"], row["parent"]) for row in shown] == [(2, 0), (1, 0)]
    text = " ".join(commands.succeed("best", paths.root, cwd=tmp_path).stdout.split())
    assert "cannot be compared" not in text
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
        spent = search_time.spent_budget(ledger)
    assert [trial.number for trial in reader.asked] == [1, 2]
    assert reader.history.start is not None
    assert (spent.trials, spent.repeated) == (2, 0)
    commands.succeed("report", paths.root, cwd=tmp_path)
    page = (paths.root / "report/index.html").read_text()
    assert "Every trial started from the same policy" in page
    facts = json.loads((paths.root / "report/report.json").read_text())
    assert facts["search"]["unchanged_jobs"] == ["hopper-t00000-start-s0"]
    assert "hopper-t00000-start-s0" in [row["job_id"] for row in facts["jobs"]]


@pytest.mark.parametrize("ends", [True, False])
def test_a_search_of_which_only_that_training_succeeds_has_not_succeeded(
    tmp_path: Path, ends: bool
) -> None:
    told = [Told(values=[7.0], role="start"), Told(why="no legs", parent=0)]
    told.append(Told(values=[1.0], parent=0) if ends else Told(why="no legs", parent=0))
    paths = search_run(
        tmp_path / "run", told, start="reference", space=SPACE, starts_from="hopper-start-s0"
    )
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
        assert search_events.has_value(ledger) == ends
    assert reader.history.has_succeeded == ends
    assert len(reader.history.whys) == (0 if ends else 2), "the failures in a row"


def search_file(folder: Path, table: str, job: str = "", space: str = "") -> Path:
    path = folder / "jobs.toml"
    varied = space or '"ppo.learning_rate" = { low = 1e-4, high = 1e-2, log = true }'
    path.write_text(
        f'name = "search"\nmax_parallel = 2\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\ntask = "forward"\nseeds = [0, 3]\n{job}\n'
        '[search]\nsampler = "random"\nobjective = "ep_rew_mean"\nstart = "reference"\n'
        f"{table}\n[search.space]\n{varied}\n"
    )
    return path


@pytest.mark.nightly
def test_every_trial_starts_from_the_policy_of_the_unchanged_job(tmp_path: Path) -> None:
    """Also that of the unchanged point; the training of it waits for no rung."""
    table = "trials = 4\ninitial = [{}]\nscheduler = { min_env_steps = 128 }"
    jobs = search_file(tmp_path, table, f'xml = "{commands.HOPPER}"')
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    rows = commands.summary(tmp_path / "run")
    first = "hopper-start-s0"
    assert next(iter(rows)) == first
    assert rows[first]["state"] == "SUCCEEDED"
    assert len(rows) == 1 + 4 * 2
    for job_id in rows:
        text = (tmp_path / "run/jobs" / job_id / "spec.json").read_text()
        init = WorkerSpec.from_json(text).init
        expected = None if job_id == first else str(tmp_path / "run/jobs" / first)
        assert init == expected, job_id
    with run_directory.opened_ledger(RunPaths(tmp_path / "run"), read_only=True) as ledger:
        events = search_events.events(ledger)
    asked = [event for event in events if event.kind == "asked"]
    assert asked[0].content["role"] == "start"
    assert all(event.content["parent"] == 0 for event in asked[1:])
    order = [event.kind for event in events]
    assert order.index("over") < [i for i, kind in enumerate(order) if kind == "asked"][1]


OWN = """
import mujoco
def make(params, folder):
    spec = mujoco.MjSpec.from_file(HOPPER)
    for number, actuator in enumerate(spec.actuators):
        actuator.name = f"{params.get('prefix', 'own')}{number}"
    path = folder / "hopper.xml"
    path.write_text(spec.to_xml())
    return path
"""


@pytest.mark.nightly
def test_a_policy_that_does_not_fit_the_bodies_is_refused_before_anything_is_launched(
    tmp_path: Path,
) -> None:
    (tmp_path / "bodies.py").write_text(OWN.replace("HOPPER", repr(str(commands.HOPPER))))
    varied = '"params.prefix" = { choices = ["left", "right"] }'
    jobs = search_file(tmp_path, "trials = 2", 'xml = "bodies:make"', varied)
    for arguments in (("run", jobs), ("run", jobs, "--dry-run")):
        done = commands.invoke(*arguments, cwd=tmp_path)
        shown = " ".join((done.stdout + done.stderr).split())
        assert done.returncode != 0, shown
        assert "search.start: the policy of the unchanged job does not fit the body of" in shown
        assert "Traceback" not in shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly
def test_a_search_whose_reference_fails_stops_and_says_so(
    tmp_path: Path,
) -> None:
    """The unchanged body is no robot; those of the space are."""
    (tmp_path / "bodies.py").write_text(
        "import shutil\n"
        "def make(params, folder):\n"
        "    if 'length' not in params:\n"
        "        raise ValueError('no length')\n"
        f"    return shutil.copy({str(commands.HOPPER)!r}, folder / 'hopper.xml')\n"
    )
    varied = '"params.length" = { low = 0.5, high = 1.5 }'
    jobs = search_file(tmp_path, "trials = 2", 'xml = "bodies:make"', varied)
    done = commands.invoke("run", jobs, cwd=tmp_path)
    shown = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "search.start: the unchanged job cannot be trained" in shown
    assert "no length" in shown
