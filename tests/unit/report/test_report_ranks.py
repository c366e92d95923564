"""Ranks in reports: their number, their share of time in all-reduce, and the speed-up by more
ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_helpers import Trained, make_run_dir

from orchestrator import report
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.report.markdown import markdown


def made(root: Path, jobs: list[Trained]) -> tuple[report.WrittenReport, dict[str, Any]]:
    make_run_dir(root, jobs)
    done = report.make(root)
    return done, json.loads((root / "report/report.json").read_text())


def trained(ranks: int, seed: int, iteration_s: float, mode: str = "allreduce") -> Trained:
    suffix = f"-{ranks}-{mode}"
    return Trained(
        name="dog", suffix=suffix, seed=seed, ranks=ranks, mode=mode, iteration_s=iteration_s
    )


@pytest.mark.usefixtures("undrawn")
def test_jobs_have_ranks_and_all_reduce_share_where_any_has_several(tmp_path: Path) -> None:
    done, facts = made(tmp_path / "run", [Trained(name="one"), trained(2, 0, 1.0)])
    assert [(job["ranks"], job["allreduce"]) for job in facts["jobs"]] == [
        (1, None),
        (2, pytest.approx(0.4)),
    ]
    assert "| ranks | in all-reduce |" in done.markdown()
    make_run_dir(tmp_path / "alone", [Trained(name="one")])
    alone = report.compose(tmp_path / "alone")
    assert "in all-reduce" not in markdown(alone, "")
    assert "ranks" not in {section.title.lower() for section in alone.sections}


def test_cpu_time_is_that_of_all_ranks(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [trained(2, 0, 1.0)])
    attempt = JobPaths(paths.job("j0-2-allreduce-s0").root).attempt(0)
    attempt.root.mkdir(parents=True)
    attempt.exit_of(1).write_text(ExitRecord(code=0, message="", cpu_s=100.0).to_json())
    (one,) = report.compose(tmp_path / "run").facts["attempts"]
    assert one["cpu_s"] == pytest.approx(0.8 * 15.0 + 100.0)
