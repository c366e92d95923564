"""The process that tells trackers, beside a supervisor: whatever happens to it or to its log, the
run goes on."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from command_helpers import PATIENCE_S, wait_until
from kill_helpers import command_of
from supervisor_helpers import RecordingReporter

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.procfs import is_running
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import control
from orchestrator.experiment.processes import side_process
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.tracking import files, sending, track_process
from orchestrator.features.tracking.process_arguments import AT_ONCE, GIVE_WAY
from orchestrator.features.tracking.sending import Finish, JobRows
from orchestrator.features.tracking.track_process import (
    COMPLETE,
    FINISH,
    HAS_BEGUN,
    MODULE,
    MOST_BYTES,
    STEADY_S,
    TrackProcess,
)
from orchestrator.ledger import Ledger

ENDS = ("platform",)
"""A module that prints a line and ends."""
SILENT = ("abc",)
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


def arguments_of(process: TrackProcess) -> list[str]:
    popen = process._process._popen
    assert popen is not None
    given: list[str] = wait_until(
        lambda: [word for word in command_of(popen.pid) if word.startswith("--")], "its start"
    )
    return given


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


@pytest.mark.parametrize("begins", [False, True])
def test_a_process_that_gets_no_cpu_time_is_replaced_once_cores_are_free_for_some_time(
    begins: bool, tmp_path: Path, hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, reporter = tracked(tmp_path, arguments=[hangs, "--", *(["begins"] if begins else [])])
    now = 100.0
    monkeypatch.setattr(track_process, "time", SimpleNamespace(monotonic=lambda: now))
    with running(process):
        process.before_turn()
        assert GIVE_WAY in arguments_of(process)
        if begins:
            log, line = files.log(process.run_dir), f"{HAS_BEGUN}\n"
            wait_until(
                lambda: line in log.read_text(), "a whole line: it may be written in two parts"
            )
        for free, later_s in (
            (True, STEADY_S / 2),
            (False, STEADY_S),
            (True, STEADY_S / 2),
            (True, 0.0),
        ):
            process.has_free_cores = lambda free=free: free
            process.before_turn()
            now += later_s
            assert process._process.starts == 1, "a job may be about to be launched"
        now += STEADY_S
        process.before_turn()
        assert (GIVE_WAY in arguments_of(process)) is begins
        assert process._process.starts == 2 - begins
    assert not reporter.messages(), "nothing has gone wrong"


def test_nothing_is_started_before_jobs_are(tmp_path: Path, hangs: str) -> None:
    process, _ = tracked(tmp_path, arguments=[hangs])
    process.has_free_cores = lambda: None
    process.before_turn()
    assert process._process.starts == 0


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


def test_only_trackers_that_lack_something_are_named_at_the_end(tmp_path: Path, hangs: str) -> None:
    process, reporter = tracked(tmp_path, "tensorboard", "mlflow", arguments=[hangs, "mlflow"])
    with running(process):
        process.finish(lambda: False)
    assert reporter.messages().startswith("trackers: mlflow may not have everything")


def test_each_tracker_that_has_everything_is_named_and_a_server_that_is_away_is_asked_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    finish, asked = Finish(), list[str]()

    class OneTracker(SimpleNamespace):
        def turn(self, rows: object, *, is_last: bool) -> bool:
            asked.append(self.backend)
            if self.backend == "mlflow":
                self.failures += 1
                if self.failures == 2:
                    finish.set()
                return self.failures > 3
            return True

    away, sound = (OneTracker(backend=name, failures=0, left_out=0) for name in ("mlflow", "wandb"))
    jobs: Any = SimpleNamespace(read=list)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RETRY_S", "FINAL_RETRY_S"):
            patch.setattr(sending, name, 0.0)
        patch.setattr(sending, "READING", replace(sending.READING, every_s=0.0))
        sending._loop([away, sound], jobs, finish)
    assert asked == ["mlflow", "wandb", "wandb", "mlflow", "wandb", "mlflow", "mlflow"]
    assert capsys.readouterr().out.splitlines() == [
        HAS_BEGUN,
        f"{COMPLETE}wandb",
        f"{COMPLETE}mlflow",
    ]


def test_a_log_that_cannot_be_read_does_not_concern_the_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path) -> NoReturn:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    process, reporter = tracked(tmp_path)
    process.before_turn()
    has_ended(process._process)
    for module in (track_process, side_process):
        monkeypatch.setattr(module, "open_regular", stale)
    process._start_at = 0.0
    process.before_turn()
    assert "exit code 0" in reporter.messages(), "its last words cannot be read"
    process.end()


def test_a_log_that_is_a_folder_is_one_warning(tmp_path: Path) -> None:
    process, reporter = tracked(tmp_path)
    files.log(process.run_dir).mkdir(parents=True)
    for _ in range(3):
        process._start_at = 0.0
        process._process.starts = 0
        process.before_turn()
    assert reporter.kinds() == ["warning"]
    assert "could not be started" in reporter.messages()


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


def test_output_without_an_end_of_line_is_read_in_pieces_and_once(tmp_path: Path) -> None:
    process, reporter = tracked(tmp_path)
    process._start_at = math.inf
    files.log(process.run_dir).parent.mkdir()
    content = (
        b"x" * (3 * MOST_BYTES + 5)
        + b"\nwarning: the server is away\nwarning: the server is away\n"
    )
    files.log(process.run_dir).write_bytes(content)
    positions = []
    for _ in range(5):
        process.before_turn()
        positions.append(process._read_up_to)
    assert positions == [MOST_BYTES, 2 * MOST_BYTES, 3 * MOST_BYTES, len(content), len(content)]
    assert reporter.messages() == "trackers: the server is away"


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
        paths.finishing.touch()
        tracked(tmp_path)[0].finish(is_stopped)
    assert answers
    assert "only finishes what is beside it now" in answers[0]


def test_a_folder_that_cannot_be_made_is_a_warning_and_the_run_goes_on(tmp_path: Path) -> None:
    process, reporter = tracked(tmp_path)
    files.log(process.run_dir).parent.write_text("a file of the user's")
    with running(process):
        for _ in range(2):
            process._start_at = 0.0
            process.before_turn()
    assert reporter.kinds() == ["warning"]
    assert "could not be started" in reporter.messages()


def test_a_ledger_that_a_tracker_reads_is_one_file_when_the_run_has_ended(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    ledger, jobs = Ledger.create(paths.ledger), JobRows(paths)
    assert ledger.summary() == jobs.read() == jobs.read() == []
    ledger.close()
    assert list(tmp_path.iterdir()) == [paths.ledger]


HANGING_IMPORT = """
import os, pathlib, time
pathlib.Path(__file__).with_name(f"importing-{os.getpid()}").touch()
time.sleep(600)
"""
SUPERVISOR = f"""
import os, sys, time
from dataclasses import replace
from pathlib import Path
from orchestrator.experiment.processes.side_process import SideProcess

folder = Path(sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]
beside = SideProcess(arguments=["{MODULE}", sys.argv[1]], run_dir=folder, log=folder / "process.log")
beside.start()
print(beside._popen.pid, flush=True)
time.sleep(600)
"""


def test_a_process_that_still_imports_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    (tmp_path / "sqlite3.py").write_text(HANGING_IMPORT)
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        wait_until((tmp_path / f"importing-{pid}").exists, "it imports")
        supervisor.kill()
    wait_until(lambda: not is_running(pid), "it is gone")
