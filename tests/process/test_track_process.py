"""The process that tells trackers, beside a supervisor: whatever happens to it or to its log, the run goes on."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from command_helpers import wait_until
from supervisor_helpers import RecordingReporter, make_machine

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.core.process_setup import AT_ONCE
from orchestrator.experiment import control, run_directory, search_process, track_process, videos
from orchestrator.experiment.search_process import SearchProcess
from orchestrator.experiment.side_process import SideProcess
from orchestrator.experiment.track_process import FINISH, MODULE, MOST_BYTES, TrackProcess
from orchestrator.ledger import Ledger
from orchestrator.machine.slots import SlotPool
from orchestrator.track.tracker import JobRows

ENDS = ("platform",)
"""A module that prints a line and ends."""
SILENT = ("abc",)


def tracked(folder: Path) -> tuple[TrackProcess, RecordingReporter]:
    """With a process that ends at once in place of the real one."""
    paths, reporter = RunPaths(folder), RecordingReporter()
    experiment: Any = SimpleNamespace(name="robots", trackers={"tensorboard": {}})
    made = TrackProcess(experiment=experiment, paths=paths, reporter=reporter)
    made._process = SideProcess(arguments=ENDS, run_dir=folder, log=paths.track_log)
    return made, reporter


def has_ended(process: SideProcess) -> None:
    assert process._popen is not None
    process._popen.wait()


def test_the_process_takes_what_cpu_time_is_left_unless_it_is_waited_for(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.track_declared.parent.mkdir()
    paths.track_declared.write_text(json.dumps({"name": "robots", "trackers": {}}))
    process = SideProcess(arguments=(MODULE, str(tmp_path)), run_dir=tmp_path, log=paths.track_log)
    process.start()
    assert process._popen is not None
    pid = process._popen.pid
    wait_until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE, "the lowest priority")
    process.tell(FINISH)
    assert process._popen.wait() == 0
    process.end()
    process.start(AT_ONCE)
    assert process._popen.wait() == 0, "nobody has told it to finish"
    process.end()


def test_a_log_that_cannot_be_read_does_not_concern_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> NoReturn:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    process, reporter = tracked(tmp_path)
    process.look_after()
    has_ended(process._process)
    for module in ("track_process", "side_process"):
        monkeypatch.setattr(f"orchestrator.experiment.{module}.open_regular", stale)
    process._start_at = 0.0
    process.look_after()
    assert "exit code 0" in reporter.messages(), "its last words cannot be read"
    process.end()


def test_a_log_that_is_a_folder_is_one_warning(tmp_path: Path) -> None:
    process, reporter = tracked(tmp_path)
    process.paths.track_log.mkdir(parents=True)
    for _ in range(3):
        process._start_at = 0.0
        process._process.starts = 0
        process.look_after()
    assert reporter.kinds() == ["warning"]
    assert "could not be started" in reporter.messages()


def test_a_process_that_ends_is_started_again_after_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, reporter = tracked(tmp_path)
    started_at = []
    for now in range(0, 200, 5):
        monkeypatch.setattr(track_process, "time", SimpleNamespace(monotonic=lambda now=now: float(now)))
        starts = process._process.starts
        process.look_after()
        if process._process.starts > starts:
            started_at.append(now)
            has_ended(process._process)
    assert started_at == [0, 10, 30, 70, 150]
    assert reporter.kinds() == ["warning"]
    process.end()


def test_output_without_an_end_of_line_is_read_in_pieces_and_once(tmp_path: Path) -> None:
    process, reporter = tracked(tmp_path)
    process._start_at = math.inf
    process.paths.track_log.parent.mkdir()
    content = b"x" * (3 * MOST_BYTES + 5) + b"\nwarning: the server is away\nwarning: the server is away\n"
    process.paths.track_log.write_bytes(content)
    positions = []
    for _ in range(5):
        process.look_after()
        positions.append(process._read_up_to)
    assert positions == [MOST_BYTES, 2 * MOST_BYTES, 3 * MOST_BYTES, len(content), len(content)]
    assert reporter.messages() == "trackers: the server is away"


def test_a_process_that_ended_before_it_was_told_can_be_ended(tmp_path: Path) -> None:
    process = SideProcess(arguments=ENDS, run_dir=tmp_path, log=tmp_path / "track" / "track.log")
    process.start()
    has_ended(process)
    with contextlib.suppress(BrokenPipeError):
        process.tell(b"\n")
    process.end()
    assert process.exit_code == 0


def test_a_process_that_ends_without_a_word_has_no_earlier_reason(tmp_path: Path) -> None:
    process = SideProcess(arguments=SILENT, run_dir=tmp_path, log=tmp_path / "process.log")
    process.log.write_text("the reason of the one before\n")
    process.start()
    has_ended(process)
    assert process.why_it_ended() == "its process ended with exit code 0"


@pytest.mark.parametrize("steady_s", [math.inf, -1.0])
def test_a_searcher_that_had_worked_for_long_is_started_again_without_end(
    steady_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_process, "STEADY_S", steady_s)
    slots: Any = SimpleNamespace(lanes=1)
    paths, reporter = RunPaths(tmp_path), RecordingReporter()
    searcher = SearchProcess(paths=paths, holder="me", slots=slots, reporter=reporter)
    searcher._process, searcher._is_needed = SideProcess(arguments=SILENT, run_dir=tmp_path, log=paths.search_log), True
    searcher.look_after()
    starts = 1
    while searcher.may_add_jobs and starts <= search_process.MOST_STARTS:
        has_ended(searcher._process)
        searcher.look_after()
        starts += searcher.may_add_jobs
    assert starts == search_process.MOST_STARTS + (steady_s < 0)
    assert bool(searcher.problem) is paths.search_stopped.exists() is (steady_s > 0)
    searcher._process.end()


def test_requests_are_refused_while_the_end_of_a_run_waits_for_trackers(tmp_path: Path) -> None:
    answers = []

    def is_stopped() -> bool:
        with pytest.raises(RunDirError) as refused:
            control.set_max_parallel(tmp_path, 2)
        answers.append(str(refused.value))
        return True

    with run_directory.claim(tmp_path) as paths:
        Ledger.create(paths.ledger).close()
        paths.staging.mkdir(exist_ok=True)
        assert "asked" in control.set_max_parallel(tmp_path, 2)
        videos.make_missing(paths, [], {}, SlotPool(make_machine(1)), RecordingReporter(), lambda: False)
        tracked(tmp_path)[0].finish(is_stopped)
    assert answers
    assert "tells trackers now" in answers[0]


def test_a_folder_that_cannot_be_made_is_a_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    process, reporter = tracked(tmp_path)
    process.paths.track_log.parent.write_text("a file of the user's")
    with process.running():
        for _ in range(2):
            process._start_at = 0.0
            process.look_after()
    assert reporter.kinds() == ["warning"]
    assert "could not be started" in reporter.messages()


def test_a_ledger_that_a_tracker_reads_is_one_file_when_the_run_has_ended(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    ledger, jobs = Ledger.create(paths.ledger), JobRows(paths)
    assert ledger.summary() == jobs.read() == jobs.read() == []
    ledger.close()
    assert list(tmp_path.iterdir()) == [paths.ledger]
