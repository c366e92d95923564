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
from command_helpers import odd, stubbed, write_experiment

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
        assert process.wait(30.0) == 130
    finally:
        process.kill()
        process.wait()
    assert json.loads((tmp_path / "run/jobs/one-s0/attempts/0/exit.json").read_text())["code"] == 11


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
