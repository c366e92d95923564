"""What commands show in a terminal, and what happens when it is closed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import Experiment, give, odd, write_experiment
from supervisor_helpers import make_job

from orchestrator.core.job import Cause, Failed, Succeeded
from orchestrator.executors.base import Handle
from orchestrator.machine.slots import Slot
from orchestrator.supervisor.active_attempts import ActiveAttempt
from orchestrator.supervisor.events import View
from orchestrator.terminal import live_table, status_view

ROWS: list[dict[str, Any]] = [
    {
        "job_id": job_id,
        "state": state,
        "cause": None,
        "message": None,
        "env_steps": 204_800,
        "total_timesteps": 204_800,
        "ep_rew_mean_first": 12.3,
        "ep_rew_mean": 1234.5,
        "eval_mean": 1300.1,
        "env_steps_per_s": 4321.0,
        "wall_s": 3725.0,
        "attempts": 1,
        "ranks": 1,
        "node": None,
    }
    for job_id, state in [("hopper-s0", "SUCCEEDED"), ("a-name-" * 9 + "s0", "RUNNING"), ("脚-s0", "FAILED")]
]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_table_fits_the_terminal_and_keeps_the_returns(width: int) -> None:
    from rich.console import Console

    console = Console(width=width, force_terminal=True, no_color=True)
    with console.capture() as capture:
        console.print(status_view.summary(ROWS, width, alive=True))
    lines = capture.get().splitlines()
    assert len(lines) == 1 + len(ROWS), "a row was wrapped"
    assert all("12.3 → 1,234.5" in line for line in lines[1:])
    assert all(row["state"] in line for row, line in zip(ROWS, lines[1:], strict=True))
    assert ("attempts" in lines[0]) == (width >= 140)


@pytest.mark.parametrize(("height", "others"), [(8, []), (10, ["over1", "next0"]), (24, ["over0", "over1", "next0"])])
def test_live_table_shows_what_is_over_and_what_is_next_where_there_is_room(height: int, others: list[str]) -> None:
    from rich.console import Console

    def attempt(name: str) -> ActiveAttempt:
        handle, slot = Handle(name, 0), Slot(index=0, cpus=(0,), gpus=())
        return ActiveAttempt(job=make_job(name), handle=handle, slot=slot, started=0.0, last_progress=0.0)

    view = View(
        elapsed_s=1.0,
        counts=Counter(SUCCEEDED=1, FAILED=1, RUNNING=2, PENDING=1),
        active=[attempt("live0"), attempt("live1")],
        ended=[(attempt("over0"), Failed(cause=Cause.ERROR, message="")), (attempt("over1"), Succeeded())],
        next_up=[make_job("next0")],
        steps_to_go=0,
        cores_busy=1.6,
        env_steps_per_s=0.0,
    )
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(live_table.rendered(live_table.screen(view), 80, height))
    shown = [line.split()[:2] for line in capture.get().splitlines() if re.match("live|over|next", line)]
    states = {"over0": "failed", "over1": "succeeded", "next0": "pending"} | dict.fromkeys(
        ("live0", "live1"), "starting"
    )
    names = [name for name in ("over0", "over1", "live0", "live1", "next0") if name in [*others, "live0", "live1"]]
    assert shown == [[name, states[name]] for name in names]


IN_A_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """A program in its own terminal, 80 columns wide; the command, unless there is another ``program``."""

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
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": commands.HOPPER, "total_timesteps": 1_000_000})
    terminal = Terminal("run", jobs, "--run-dir", "run", cwd=tmp_path)
    terminal.until("hopper-s0  training")
    for name in ("jobs done", "env_steps/s", "cores busy", "ETA", "return", "CPU", "wait", "attempt"):
        assert name in terminal.shown
    terminal.type("\x03")
    terminal.until("Run the same command again to resume.")
    assert "INTERRUPTED" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert terminal.popen.wait(commands.PATIENCE_S) == 130
    terminal.close()


def test_a_terminal_that_is_held_holds_up_no_job_and_shows_the_present_when_it_goes_on(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"), odd("two", "nothing"), head="max_parallel = 1")
    terminal = Terminal(cwd=tmp_path, program=commands.stubbed("run", jobs, "--run-dir", "run"))
    terminal.until("one-s0  starting")
    terminal.type("\x13")  # Ctrl-S
    (tmp_path / "go-one-s0").touch()
    commands.wait_until((tmp_path / "run/jobs/two-s0/started").exists, "the second launch")
    terminal.type("\x11")  # Ctrl-Q
    terminal.until("one-s0  succeeded")
    terminal.until("two-s0  starting")
    terminal.type("\x13")
    terminal.popen.send_signal(signal.SIGTERM)
    commands.wait_until((tmp_path / "run/jobs/two-s0/attempts/0/exit.json").exists, "the worker's exit")
    terminal.type("\x11")
    terminal.until("Run the same command again to resume.")
    assert terminal.popen.wait(commands.PATIENCE_S) == 130
    terminal.close()


def test_closing_the_terminal_stops_in_good_order(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "hopper", "xml": commands.HOPPER, "total_timesteps": 1_000_000})
    terminal = Terminal(cwd=tmp_path, program=commands.stubbed("run", jobs, "--run-dir", "run"))
    terminal.until("hopper-s0  starting")
    commands.wait_until((tmp_path / "run/jobs/hopper-s0/started").exists, "the worker")
    terminal.close()
    assert terminal.popen.wait(commands.PATIENCE_S) == 130
    row = commands.summary(tmp_path / "run")["hopper-s0"]
    assert (row["state"], row["cause"]) == ("PENDING", None)
    record = json.loads((tmp_path / "run/jobs/hopper-s0/attempts/0/exit.json").read_text())
    assert record["code"] == 11, "the worker had time to checkpoint"


def test_reader_that_goes_away_does_not_end_the_training(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    process = subprocess.Popen(
        commands.stubbed("run", jobs, "--run-dir", "run"),
        cwd=tmp_path,
        env=commands.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        process.stdout.readline()
        process.stdout.close()
        (tmp_path / "go-one-s0").touch()
        assert process.wait(commands.PATIENCE_S) == 0
        assert process.stderr.read() == b""
    assert {row["state"] for row in commands.summary(tmp_path / "run").values()} == {"SUCCEEDED"}


def test_a_terminal_without_unicode_is_no_reason_to_fail(finished_once: Experiment) -> None:
    done = give("status", "run", cwd=finished_once.cwd, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "hopper-s0" in done.stdout


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


@pytest.mark.skipif(shutil.which("nohup") is None, reason="nohup is not installed")
def test_nohup_keeps_its_promise(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, odd("one", "nothing"))
    process = subprocess.Popen(
        ["nohup", *commands.stubbed("run", jobs, "--run-dir", "run")],
        cwd=tmp_path,
        env=commands.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        (tmp_path / "go-one-s0").touch()
        process.stdout.read()
    assert process.wait(commands.PATIENCE_S) == 0
