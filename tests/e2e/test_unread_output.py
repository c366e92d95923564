"""Nobody reads what ``run`` prints: jobs are launched, end and stop as ever. The command ends when
its output is read."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import odd, stubbed, write_experiment

ONE_AT_A_TIME = "max_parallel = 1"


class FullPipe:
    """A command whose standard output and standard error are a pipe that is full."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        self.reader, writer = os.pipe()
        self._filling = b"x" * fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writer, self._filling)
        self.popen = subprocess.Popen(
            stubbed(*arguments),
            cwd=cwd,
            env=commands.environment(),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)

    def read(self) -> str:
        """All that the command prints, to its end."""
        with os.fdopen(self.reader, "rb") as file:
            return file.read().removeprefix(self._filling).decode()

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return write_experiment(
        tmp_path, odd("one", "nothing"), odd("two", "nothing"), head=ONE_AT_A_TIME
    )


def started(tmp_path: Path, job_id: str) -> None:
    commands.wait_until((tmp_path / f"run/jobs/{job_id}/started").exists, f"{job_id} is launched")


def states(tmp_path: Path) -> dict[str, str]:
    return {job_id: row["state"] for job_id, row in commands.summary(tmp_path / "run").items()}


@pytest.fixture
def closing() -> Iterator[list[FullPipe]]:
    pipes: list[FullPipe] = []
    yield pipes
    for pipe in pipes:
        pipe.close()


def has_ended(tmp_path: Path) -> bool:
    return (tmp_path / "run/ended.json").exists()


def test_all_jobs_train_while_nobody_reads(
    jobs: Path, tmp_path: Path, closing: list[FullPipe]
) -> None:
    (tmp_path / "go-one-s0").touch()
    (tmp_path / "go-two-s0").touch()
    pipe = FullPipe("run", jobs, "--run-dir", "run", "--json", cwd=tmp_path)
    closing.append(pipe)
    commands.wait_until(lambda: has_ended(tmp_path), "the end of the run")
    assert states(tmp_path) == {"one-s0": "SUCCEEDED", "two-s0": "SUCCEEDED"}
    assert pipe.popen.poll() is None
    assert '"ended"' in pipe.read()
    assert pipe.popen.wait(commands.PATIENCE_S) == 0


@pytest.mark.nightly
def test_sigterm_stops_in_good_order_while_nobody_reads(
    jobs: Path, tmp_path: Path, closing: list[FullPipe]
) -> None:
    pipe = FullPipe("run", jobs, "--run-dir", "run", cwd=tmp_path)
    closing.append(pipe)
    started(tmp_path, "one-s0")
    pipe.popen.send_signal(signal.SIGTERM)
    commands.wait_until(lambda: has_ended(tmp_path), "the end of the run")
    assert states(tmp_path) == {"one-s0": "PENDING", "two-s0": "PENDING"}
    record = json.loads((tmp_path / "run/jobs/one-s0/attempts/0/exit.json").read_text())
    assert record["code"] == 11
    pipe.read()
    assert pipe.popen.wait(commands.PATIENCE_S) == 130
