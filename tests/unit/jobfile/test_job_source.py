"""What decides which jobs there are: tables that mean that, and what is said of a run directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_job

from orchestrator.client import recorded_run, run_snapshot
from orchestrator.core.errors import RunDirError
from orchestrator.core.job import Job, Paused, Pending, State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.jobfile.job_source import JobSource
from orchestrator.keys.feature_tables import FeatureTable, read_job_source
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import TomlTable
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob


class Source(JobSource):
    noun = "draw"


def draws(top: Mapping[str, Any], entries: int, problems: Problems) -> JobSource | None:
    return Source() if entries == 1 else None


def falls(top: Mapping[str, Any], entries: int, problems: Problems) -> JobSource | None:
    raise ValueError("the knee fell off")


def read(entries: int = 1, **made: Any) -> tuple[JobSource | None, list[str]]:
    """What a job file with tables of these sources means, and its problems."""
    tables = {
        name: FeatureTable(name=name, about="x", model=TomlTable, job_source=source)
        for name, source in made.items()
    }
    problems = Problems()
    found = read_job_source(tables, {name: {} for name in tables}, entries, problems)
    return found, list(map(str, problems.in_order()))


def test_a_table_may_decide_which_jobs_there_are() -> None:
    assert read(plain=None) == (None, [])
    source, problems = read(plain=None, draw=draws)
    assert isinstance(source, Source)
    assert problems == []
    assert read(entries=2, draw=draws) == (None, [])


def test_a_table_that_is_not_written_is_not_asked() -> None:
    table = FeatureTable(name="draw", about="x", model=TomlTable, job_source=falls)
    problems = Problems()
    assert read_job_source({"draw": table}, {}, 1, problems) is None
    draw = FeatureTable(name="draw", about="x", model=TomlTable, job_source=draws)
    source = read_job_source({"plain": table, "draw": draw}, {"draw": {}}, 1, problems)
    assert isinstance(source, Source)
    assert not problems


def run_directory(root: Path, states: Mapping[str, tuple[Job, State]]) -> tuple[RunPaths, Ledger]:
    """A run directory whose jobs are in these states."""
    paths = RunPaths(root)
    paths.experiment.write_text('name = "drawn"\n')
    ledger = Ledger.create(paths.ledger)
    for position, (job, state) in enumerate(states.values()):
        ledger.put_jobs([DeclaredJob(position=position, job=job)])
        ledger.set_state(job.job_id, state)
    ledger.commit()
    return paths, ledger


def test_jobs_that_nothing_compares_are_shown_and_not_trained_without_their_job_file(
    tmp_path: Path,
) -> None:
    compared = make_job("compared").with_spec(pause_at=100)
    states: dict[str, tuple[Job, State]] = {
        "done": (make_job("done"), Succeeded()),
        "compared": (compared, Paused(at_rung=True)),
    }
    paths, ledger = run_directory(tmp_path, states)
    snapshot = run_snapshot.status(paths.root)
    assert [row["state"] for row in snapshot.rows] == ["SUCCEEDED", "PAUSED"]
    assert run_snapshot.exit_code_of(snapshot) == 0
    with pytest.raises(RunDirError):
        recorded_run.load(paths.root)
    ledger.put_jobs(
        [DeclaredJob(position=1, job=dataclasses.replace(compared, spec=make_job("compared").spec))]
    )
    ledger.set_state("compared", Pending())
    ledger.commit()
    ledger.close()
    assert [job.job_id for job in recorded_run.load(paths.root)[0].jobs] == ["done", "compared"]
