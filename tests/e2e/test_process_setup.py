"""What a command inherits from whoever starts it: closed standard streams, blocked signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import STUBS, odd, stubbed, write_experiment

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SCRIPT = f"""{STUBS}
import orchestrator
how = sys.argv[1]
if how == "closed":
    sys.stdout.close()
if how == "missing":
    sys.stdout = None
done = orchestrator.run("jobs.toml", run_dir="run", show=True)
sys.exit(done.exit_code)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return write_experiment(tmp_path, odd("one", "nothing"))


def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def succeeded(tmp_path: Path) -> bool:
    return commands.summary(tmp_path / "run")["one-s0"]["state"] == "SUCCEEDED"


def launched(tmp_path: Path) -> None:
    commands.wait_until((tmp_path / "run/jobs/one-s0/started").exists, "the launch")


def without(*descriptors: int, command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with some of its standard streams closed."""

    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return commands.finish(command, cwd=cwd, preexec_fn=close)


@pytest.mark.parametrize(
    "closed",
    [
        pytest.param([1], id="stdout", marks=pytest.mark.nightly),
        pytest.param([2], id="stderr", marks=pytest.mark.nightly),
        pytest.param([0, 1, 2], id="all", marks=pytest.mark.nightly),
    ],
)
def test_run_with_closed_standard_streams_trains_and_is_silent(
    closed: list[int], jobs: Path, tmp_path: Path
) -> None:
    (tmp_path / "go-one-s0").touch()
    done = without(*closed, command=stubbed("run", jobs, "--run-dir", "run"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("one-s0" in done.stdout) == (1 not in closed)
    assert succeeded(tmp_path)


def test_an_error_has_its_exit_code_where_nothing_can_be_printed(tmp_path: Path) -> None:
    done = without(0, 1, 2, command=commands.command("status", "nowhere"), cwd=tmp_path)
    assert done.returncode == 2


@pytest.mark.parametrize("how", ["closed", pytest.param("missing", marks=pytest.mark.nightly)])
def test_the_api_shows_nothing_where_standard_output_is_closed(
    how: str, jobs: Path, tmp_path: Path
) -> None:
    (tmp_path / "go-one-s0").touch()
    done = without(command=[sys.executable, "-c", SCRIPT, how], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert succeeded(tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(stubbed("run", "jobs.toml", "--run-dir", "run"), id="command"),
        pytest.param([sys.executable, "-c", SCRIPT, ""], id="api", marks=pytest.mark.nightly),
    ],
)
def test_no_file_of_an_experiment_takes_the_place_of_a_closed_stream(
    program: list[str], jobs: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        program,
        cwd=tmp_path,
        env=commands.environment(),
        preexec_fn=lambda: os.closerange(0, 3),  # noqa: PLW1509
    )
    try:
        launched(tmp_path)
        files = [str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)]
        (tmp_path / "go-one-s0").touch()
        assert process.wait(commands.PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert files == [os.devnull] * 3
    assert succeeded(tmp_path)


@pytest.mark.nightly
def test_signals_that_were_blocked_stop_the_command_and_its_workers(
    jobs: Path, tmp_path: Path
) -> None:
    command = stubbed("run", jobs, "--run-dir", "run")
    nowhere = subprocess.DEVNULL
    process = commands.start(
        command, cwd=tmp_path, stdout=nowhere, stderr=nowhere, preexec_fn=block_signals
    )
    try:
        launched(tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.wait(commands.PATIENCE_S) == 130
    finally:
        process.kill()
        process.wait()
    assert json.loads((tmp_path / "run/jobs/one-s0/attempts/0/exit.json").read_text())["code"] == 11


BEFORE_AND_AFTER = """
import os, signal
from orchestrator import __main__, cli
from orchestrator.supervisor.stop_signals import StopRequests

def main():
    stops = StopRequests()
    stops.deliver_to(lambda _: None, request_checkpoints=lambda: print("heard"))
    os.kill(os.getpid(), signal.SIGUSR1)
    with stops.handle_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR1)

cli.main = main
__main__.main()
print("done")
"""


def test_a_request_for_checkpoints_outside_of_the_run_ends_no_command() -> None:
    command = [sys.executable, "-c", BEFORE_AND_AFTER]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=commands.PATIENCE_S
    )
    assert done.stdout.split() == ["heard", "heard", "done"]


def signal_after_a_stop(ends_process: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import os, signal\n"
        "from orchestrator.supervisor.stop_signals import StopRequests\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        f"with StopRequests(ends_process={ends_process}).handle_signals():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "raise SystemExit(130)\n"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, timeout=commands.PATIENCE_S, text=True)


def test_a_signal_after_the_run_that_one_has_stopped_changes_no_exit_code() -> None:
    assert signal_after_a_stop("True").returncode == 130
    of_a_program = signal_after_a_stop("False")
    assert of_a_program.returncode == -signal.SIGINT, "its own handlers are back"


def test_every_child_that_is_tied_to_the_supervisor_unblocks_signals() -> None:
    code = (
        "import signal; from orchestrator.worker.runtime import supervisor_connection; supervisor_connection.attach();"
        "print(*signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, preexec_fn=block_signals, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
