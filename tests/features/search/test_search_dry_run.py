"""``run --dry-run`` of a search that has begun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_helpers import invoke, toml_tables
from trial_helpers import Told, search_run

from orchestrator.core.job import Job
from orchestrator.examination import preflight
from orchestrator.examination.preflight import JobVerdict


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

    def planned(trials: int, run_dir: str) -> Mapping[str, Any]:
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
        return plan

    whole = planned(8, "other")
    assert whole["trials_so_far"] == 0
    rest = planned(8, "run")
    assert (rest["trials_so_far"], rest["env_steps_so_far"]) == (3, 1200)
    assert rest["estimate_s"] == pytest.approx(
        whole["estimate_s"] * (5 * 1000 + 2 * 900) / (8 * 1000), rel=0.01
    )
    of_new, queued = whole["with_rungs_s"] / 8 * 5, whole["estimate_s"] / 8000 * 200
    assert rest["with_rungs_s"] == pytest.approx(of_new + queued, rel=0.01)

    shutil.rmtree(tmp_path / "run")
    search_run(tmp_path / "run", told[:2])
    over = planned(2, "run")
    assert (over["estimate_s"], over["with_rungs_s"]) == (0, 0)
