"""What commands show in a terminal, and what happens when it is closed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import command_helpers as commands
import pytest
from command_helpers import Experiment, odd, write_experiment

IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A program in its own terminal, 80 columns wide; the command, unless there is another
    ``program``."""

    def __init__(self, *arguments: str | Path, cwd: Path, program: Sequence[str] = ()) -> None:
        import fcntl
        import struct
        import termios

        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.popen = subprocess.Popen(
            [sys.executable, "-c", IN_A_TERMINAL, *(program or commands.command(*arguments))[1:]],
            cwd=cwd,
            env=commands.environment(TERM="xterm", NO_COLOR="1"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.shown = ""

    def until(self, text: str) -> None:
        while text not in self.shown:
            self.shown += os.read(self._ours, 65536).decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        """Close the terminal, as closing its window does."""
        os.close(self._ours)


def test_live_table_is_drawn_in_a_terminal_and_ctrl_c_stops(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("busy", "nothing"))
    terminal = Terminal(cwd=tmp_path, program=commands.stubbed("run", jobs, "--run-dir", "run"))
    terminal.until("busy-s0  training")
    for name in (
        "jobs ended",
        "env_steps/s",
        "cores busy",
        "ETA",
        "return",
        "CPU",
        "wait",
        "attempt",
    ):
        assert name in terminal.shown
    terminal.type("\x03")
    terminal.until("Run the same command again to resume.")
    assert "PENDING" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert terminal.popen.wait(commands.PATIENCE_S) == 130
    terminal.close()


def test_closing_the_terminal_stops_in_good_order(tmp_path: Path) -> None:
    jobs = write_experiment(
        tmp_path, {"name": "hopper", "xml": commands.HOPPER, "total_timesteps": 1_000_000}
    )
    terminal = Terminal(cwd=tmp_path, program=commands.stubbed("run", jobs, "--run-dir", "run"))
    terminal.until("hopper-s0  starting")
    commands.wait_until((tmp_path / "run/jobs/hopper-s0/started").exists, "the worker")
    terminal.close()
    assert terminal.popen.wait(commands.PATIENCE_S) == 130
    row = commands.summary(tmp_path / "run")["hopper-s0"]
    assert (row["state"], row["cause"]) == ("PENDING", None)
    record = json.loads((tmp_path / "run/jobs/hopper-s0/attempts/0/exit.json").read_text())
    assert record["code"] == 11, "the worker had time to checkpoint"


@pytest.mark.nightly
def test_reader_that_goes_away_does_not_end_the_training(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    process = commands.start(commands.stubbed("run", jobs, "--run-dir", "run"), cwd=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        process.stdout.readline()
        process.stdout.close()
        (tmp_path / "go-one-s0").touch()
        assert process.wait(commands.PATIENCE_S) == 0
        assert process.stderr.read() == ""
    assert {row["state"] for row in commands.summary(tmp_path / "run").values()} == {"SUCCEEDED"}


def test_a_log_is_harmless_in_a_terminal_and_as_it_is_in_a_pipe(finished: Experiment) -> None:
    log = finished.run_dir / "jobs/hopper-s0/attempts/0/worker.log"
    log.write_text("\x1b]52;c;ZXZpbA==\x07\tdone\n")
    terminal = Terminal("logs", "run", "hopper", cwd=finished.cwd)
    terminal.until("done")
    assert r"\u001b]52;c;ZXZpbA==\u0007" in terminal.shown
    assert "\x1b" not in terminal.shown
    assert terminal.popen.wait(commands.PATIENCE_S) == 0
    terminal.close()
    assert commands.invoke("logs", "run", "hopper", cwd=finished.cwd).stdout == log.read_text()


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("nohup") is None, reason="nohup is not installed")
def test_nohup_keeps_its_promise(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    without_hangup = ["nohup", *commands.stubbed("run", jobs, "--run-dir", "run")]
    process = commands.start(without_hangup, cwd=tmp_path, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go-one-s0").touch()
        process.stdout.read()
    assert process.wait(commands.PATIENCE_S) == 0
