"""``run --dry-run`` of a search that has begun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_helpers import HOPPER, invoke, toml_tables
from trial_helpers import Told, search_run

from orchestrator.core.job import Job
from orchestrator.experiment.examination import preflight
from orchestrator.experiment.examination.preflight import JobVerdict


def test_of_a_search_that_has_begun_the_time_of_what_remains_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(jobs: Sequence[Job], **_: object) -> dict[str, JobVerdict]:
        return {job.job_id: JobVerdict(physics_s=0.01) for job in jobs}

    # Measured anew for each plan, the speeds of a busy machine would differ.
    monkeypatch.setattr(preflight, "examine", measured)
    told = [Told(values=[3.0]), Told(reached=[0.5]), Told(reached=[2.0], is_promoted=True)]
    search_run(tmp_path / "run", told, is_over=False)
    declared: dict[str, Any] = json.loads((tmp_path / "run/search/declared.json").read_text())[
        "data"
    ]

    def shown(trials: int, run_dir: str) -> tuple[Mapping[str, Any], str]:
        tables = [
            ("[[jobs]]", declared["jobs"][0]),
            ("[search]", {**declared["search"], "trials": trials}),
        ]
        top = 'name = "found"\nmax_parallel = 1\n'
        (tmp_path / "jobs.toml").write_text(top + toml_tables(tables))
        arguments = ("run", "jobs.toml", "--run-dir", run_dir, "--dry-run")
        plan: Mapping[str, Any] = json.loads(invoke(*arguments, "--json", cwd=tmp_path).stdout)[
            "search"
        ]
        return plan, " ".join(invoke(*arguments, cwd=tmp_path).stdout.split())

    whole, text = shown(8, "other")
    assert whole["trials_so_far"] == 0
    assert " estimated time: about " in text
    rest, text = shown(8, "run")
    assert (
        "done so far: 3 trials and 1,200 env_steps; estimated time of what remains: about " in text
    )
    assert (rest["trials_so_far"], rest["env_steps_so_far"]) == (3, 1200)
    assert rest["estimate_s"] == pytest.approx(
        whole["estimate_s"] * (5 * 1000 + 2 * 900) / (8 * 1000), rel=0.01
    )
    of_new, queued = whole["with_rungs_s"] / 8 * 5, whole["estimate_s"] / 8000 * 200
    assert rest["with_rungs_s"] == pytest.approx(of_new + queued, rel=0.01)

    shutil.rmtree(tmp_path / "run")
    search_run(tmp_path / "run", told[:2])
    over, text = shown(2, "run")
    assert (over["estimate_s"], over["with_rungs_s"]) == (0, 0)
    assert "done so far: 2 trials and 1,100 env_steps; none remain" in text


@pytest.mark.parametrize(("n_envs", "said"), [(8, "at the rung of 128 env_steps"), (1, "")])
def test_rungs_before_the_end_of_a_whole_episode_are_told(
    n_envs: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 steps: with eight environments they are done after 800 env_steps."""

    def examined(jobs: Sequence[Job], **_: object) -> dict[str, JobVerdict]:
        return {job.job_id: JobVerdict(physics_s=0.01, episode_steps=100) for job in jobs}

    monkeypatch.setattr(preflight, "examine", examined)
    search = {"sampler": "random", "trials": 2, "space": {"ppo.gamma": {"low": 0.9, "high": 0.99}}}
    scheduler = {"min_env_steps": 128, "factor": 8}
    job = {"name": "hopper", "xml": HOPPER, "task": "forward", "n_envs": n_envs}
    job |= {"total_timesteps": 2048, "ppo": {"n_steps": 16, "batch_size": 16}}
    tables = [("[[jobs]]", job), ("[search]", search), ("[search.scheduler]", scheduler)]
    (tmp_path / "jobs.toml").write_text(f'name = "found"\n{toml_tables(tables)}')
    done = invoke("run", "jobs.toml", "--dry-run", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert "compared by the return of training (ep_rew_mean) at 128 and 1,024 env_steps" in text
    assert said in text
    assert ("no episode of full length has ended" in text) is bool(said)


@pytest.mark.parametrize(
    ("options", "sampler", "said"),
    [
        ("--max-parallel=4", "tpe", "of 24 trials about 6 follow what it has learnt"),
        ("--max-parallel=1", "tpe", ""),
        ("--max-parallel=20", "gp", "of 24 trials none follows"),
        ("--max-parallel=20", "random", ""),
    ],
)
def test_that_most_points_are_random_is_told(
    options: str, sampler: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examined(jobs: Sequence[Job], **_: object) -> dict[str, JobVerdict]:
        return {job.job_id: JobVerdict(physics_s=0.01, episode_steps=100) for job in jobs}

    monkeypatch.setattr(preflight, "examine", examined)
    search = {"sampler": sampler, "trials": 24, "space": {"ppo.gamma": {"low": 0.9, "high": 0.99}}}
    job = {"name": "hopper", "xml": HOPPER, "task": "forward", "total_timesteps": 2048}
    tables = [("[[jobs]]", job), ("[search]", search)]
    (tmp_path / "jobs.toml").write_text(f'name = "found"\n{toml_tables(tables)}')
    done = invoke("run", "jobs.toml", "--dry-run", options, cwd=tmp_path)
    text = " ".join(done.stdout.split())
    assert ("proposes random points until it knows the values of 10 trials" in text) is bool(said)
    assert said in text
