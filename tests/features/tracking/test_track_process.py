"""The process that tells trackers, beside a supervisor: whatever happens to it or to its log, the
run goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_helpers import PATIENCE_S, wait_until
from supervisor_helpers import RecordingReporter

from orchestrator.core.paths import RunPaths
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.tracking import files, track_process
from orchestrator.features.tracking.process_arguments import AT_ONCE, GIVE_WAY
from orchestrator.features.tracking.sending import JobRows
from orchestrator.features.tracking.track_process import (
    COMPLETE,
    FINISH,
    HAS_BEGUN,
    MODULE,
    TrackProcess,
)
from orchestrator.ledger import Ledger

ENDS = ("platform",)
"""A module that prints a line and ends."""
HANGS = f"""
import sys, time
if "{AT_ONCE}" in sys.argv:
    print("{COMPLETE}tensorboard")
    sys.exit(int("mlflow" in sys.argv))
if "begins" in sys.argv:
    print("{HAS_BEGUN}", flush=True)
time.sleep(600)
"""
"""A module that gets no CPU time, unless it is to do everything at once. Arguments: ``mlflow``
cannot be sent to; ``begins``: it has got some.
"""


def tracked(
    folder: Path, *trackers: str, arguments: Sequence[str] = ENDS
) -> tuple[TrackProcess, RecordingReporter]:
    """With another process in place of the real one; all cores are taken."""
    reporter = RecordingReporter()
    made = TrackProcess(
        name="robots",
        trackers={name: {} for name in trackers or ("tensorboard",)},
        run_dir=folder,
        reporter=reporter,
        has_free_cores=lambda: False,
    )
    made._process = SideProcess(arguments=arguments, run_dir=folder, log=files.log(folder))
    return made, reporter


@pytest.fixture
def hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module :data:`HANGS`."""
    (tmp_path / "hangs.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "hangs"


@contextlib.contextmanager
def running(process: TrackProcess) -> Iterator[None]:
    process.begin(process.has_free_cores)
    try:
        yield
    finally:
        process.end()


def has_ended(process: SideProcess) -> None:
    assert process._popen is not None
    process._popen.wait()


@pytest.mark.nightly
def test_the_process_takes_what_cpu_time_is_left_where_it_is_told_to(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    files.declaration_file(paths.root).parent.mkdir()
    files.declaration_file(paths.root).write_text(json.dumps({"name": "robots", "trackers": {}}))
    process = SideProcess(
        arguments=(MODULE, str(tmp_path)), run_dir=tmp_path, log=files.log(paths.root)
    )
    process.start(GIVE_WAY)
    assert process._popen is not None
    pid = process._popen.pid
    wait_until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE, "the lowest priority")
    process.start()
    process.tell(FINISH)
    assert process._popen.wait() == 0
    process.start(AT_ONCE)
    assert process._popen.wait() == 0, "nobody has told it to finish"
    process.end()


def test_the_end_of_a_run_waits_for_no_process_that_gets_no_cpu_time(
    tmp_path: Path, hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PATIENCE_S", "TIME_LIMIT_S"):
        monkeypatch.setattr(track_process, name, PATIENCE_S)
    process, reporter = tracked(tmp_path, arguments=[hangs])
    with running(process):
        process.before_turn()
        process.finish(lambda: False)
    assert not reporter.messages()


def test_a_process_that_ends_is_started_again_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, reporter = tracked(tmp_path)
    started_at = []
    for now in range(0, 200, 5):
        monkeypatch.setattr(
            track_process, "time", SimpleNamespace(monotonic=lambda now=now: float(now))
        )
        starts = process._process.starts
        process.before_turn()
        if process._process.starts > starts:
            started_at.append(now)
            has_ended(process._process)
    assert started_at == [0, 10, 30, 70, 150]
    assert reporter.kinds() == ["warning"]
    process.end()


def test_a_ledger_that_a_tracker_reads_is_one_file_when_the_run_has_ended(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    ledger, jobs = Ledger.create(paths.ledger), JobRows(paths)
    assert ledger.summary() == jobs.read() == jobs.read() == []
    ledger.close()
    assert list(tmp_path.iterdir()) == [paths.ledger]
