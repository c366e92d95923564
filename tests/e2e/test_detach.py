"""`run --detach` leaves its terminal when the first jobs run; `attach` follows an experiment
wherever it runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import EXAMINE_NOTHING, invoke, odd, stubbed, with_server, write_experiment

from orchestrator.client import attach
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.server.ledger import ServerLedger
from orchestrator.terminal.run_view import LineReporter, RunDisplay

EXAMINE_FOR_EVER = """
import time
from pathlib import Path
from orchestrator.examination import preflight
def examine(jobs, *, watch, **_):
    Path("examining").touch()
    while True:
        watch(0, 1)
        time.sleep(0.01)
preflight.examine = examine
"""
HELD = f"""{with_server(EXAMINE_NOTHING + EXAMINE_FOR_EVER)}
from orchestrator import __main__
__main__.main()
"""
"""A command that examines its robots for ever."""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return write_experiment(
        tmp_path, odd("one", "nothing"), odd("two", "nothing"), head="max_parallel = 1"
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """The run directory; a supervisor that a failing test leaves there is killed."""
    path = tmp_path / "run"
    yield path
    if (left := run_directory.holder(RunPaths(path))) is not None and left.pid != os.getpid():
        commands.kill(left.pid)


def supervisor(run_dir: Path) -> LockHolder:
    found = run_directory.holder(RunPaths(run_dir))
    assert found is not None
    return found


def typed(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that examines and trains nothing, to its end; nobody else may keep its output
    open."""
    return commands.finish(stubbed(*arguments), cwd=cwd)


OF_THIS_MACHINE = ("warning", "restricted")
"""Events about other experiments on it, a niceness of the tests, and the like."""


def of_the_experiment(lines: str) -> list[dict[str, Any]]:
    """Events; what the user is told of this machine is left out."""
    return [
        event
        for event in map(json.loads, lines.splitlines())
        if event["event"] not in OF_THIS_MACHINE
    ]


def following(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    return commands.start(commands.command("attach", "run", *arguments), cwd=cwd)


@contextlib.contextmanager
def waiting(cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A `wait` that has begun to wait."""
    with commands.start(commands.command("wait", "run"), cwd=cwd) as process:
        try:
            commands.wait_until(lambda: heeds_sigint(process.pid), "the command waits")
            yield process
        finally:
            process.kill()


def heeds_sigint(pid: int) -> bool:
    """Whether the command has its handler: Python itself has one until the program begins, which
    loads SQLite later."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return (
        bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)
        and "sqlite" in Path(f"/proc/{pid}/maps").read_text()
    )


def test_a_detached_experiment_survives_its_terminal_and_is_followed_to_its_end(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    begun = typed("run", jobs, "--run-dir", "run", "--detach", "--json", cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    events = of_the_experiment(begun.stdout)
    assert [event["event"] for event in events] == ["launched", "detached"]
    assert (events[-1]["running"], events[-1]["pid"]) == (1, supervisor(run_dir).pid)
    pid = events[-1]["pid"]
    assert os.getsid(pid) == pid, "it has a session of its own, without a terminal"
    os.kill(pid, signal.SIGHUP)
    follower = following(tmp_path, "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["event"] == "attached"
    for name in ("one-s0", "two-s0"):
        commands.wait_until((run_dir / f"jobs/{name}/started").exists, f"{name} is launched")
        (tmp_path / f"go-{name}").touch()
    out, err = follower.communicate(timeout=commands.PATIENCE_S)
    assert (follower.returncode, err) == (0, "")
    seen = {(event["event"], event.get("job_id")) for event in map(json.loads, out.splitlines())}
    assert {
        ("succeeded", "one-s0"),
        ("launched", "two-s0"),
        ("succeeded", "two-s0"),
        ("ended", None),
    } <= seen
    log = (run_dir / "supervisor.log").read_text()
    assert [line.split()[1] for line in log.splitlines() if "one-s0" in line] == [
        "launched:",
        "succeeded:",
    ]
    again = typed("run", jobs, "--run-dir", "run", "--detach", cwd=tmp_path)
    assert again.returncode == 0
    assert "2 jobs were finished before" in again.stdout
    ended = invoke("attach", "run", cwd=tmp_path)
    assert (ended.returncode, "two-s0" in ended.stdout) == (0, True), (
        "it is over, and how it ended is recorded"
    )


@pytest.mark.nightly
def test_ctrl_c_while_the_command_waits_ends_both(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    held = [sys.executable, "-c", HELD, "run", jobs, "--run-dir", "run", "--detach"]
    process = commands.start(held, cwd=tmp_path)
    commands.wait_until((tmp_path / "examining").exists, "the examination")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=commands.PATIENCE_S)
    assert (process.returncode, "nothing was launched" in err) == (130, True)
    assert not run_dir.exists()


@pytest.mark.nightly
def test_ctrl_c_ends_who_follows_and_not_the_experiment(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    typed("run", jobs, "--run-dir", "run", "--detach", cwd=tmp_path)
    follower = following(tmp_path)
    assert follower.stdout is not None
    assert "1 running" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=commands.PATIENCE_S)
    assert (follower.returncode, "continues" in err) == (130, True)
    pid = supervisor(run_dir).pid
    follower = following(tmp_path)
    assert follower.stdout is not None
    follower.stdout.readline()
    os.kill(pid, signal.SIGKILL)
    _, err = follower.communicate(timeout=commands.PATIENCE_S)
    assert (follower.returncode, "killed" in err) == (1, True)
    none = invoke("attach", "run", cwd=tmp_path)
    assert (none.returncode, "killed" in none.stderr, "`run run`" in none.stderr) == (1, True, True)


def test_a_second_run_follows_the_first_or_is_refused(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    typed("run", jobs, "--run-dir", "run", "--detach", cwd=tmp_path)
    pid = supervisor(run_dir).pid
    command = stubbed("run", jobs, "--run-dir", "run", "--json")
    with commands.start(command, cwd=tmp_path) as second:
        assert second.stdout is not None
        assert json.loads(second.stdout.readline())["event"] == "joined"
        second.send_signal(signal.SIGINT)
        _, err = second.communicate(timeout=commands.PATIENCE_S)
    assert (second.returncode, "continues" in err, supervisor(run_dir).pid) == (130, True, pid)
    changed = invoke("run", jobs, "--run-dir", "run", "--set", "total_timesteps=99", cwd=tmp_path)
    assert (changed.returncode, "`reload" in changed.stderr) == (2, True)
    with commands.start(command, cwd=tmp_path) as second:
        for name in ("one-s0", "two-s0"):
            (tmp_path / f"go-{name}").touch()
        out, _ = second.communicate(timeout=commands.PATIENCE_S)
    assert (second.returncode, json.loads(out.splitlines()[-1])["event"]) == (0, "ended")


@pytest.mark.nightly
def test_who_waits_returns_with_the_jobs_or_the_run_or_in_time(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    typed("run", jobs, "--run-dir", "run", "--detach", cwd=tmp_path)
    late = invoke("wait", "run", "two", "--timeout", "1s", cwd=tmp_path)
    assert (late.returncode, late.stdout, "continues" in late.stderr) == (
        124,
        "run: 1 pending (two-s0)\n",
        True,
    )
    assert invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 130
    (tmp_path / "go-one-s0").touch()
    one = invoke("wait", "run", "one", cwd=tmp_path)
    assert (one.returncode, one.stdout, one.stderr) == (0, "run: 1 succeeded (one-s0)\n", "")
    assert invoke("stop", "run", "two", cwd=tmp_path).returncode == 0
    all_of_it = invoke("wait", "run", cwd=tmp_path)
    assert (all_of_it.returncode, all_of_it.stdout) == (1, "run: 1 succeeded, 1 cancelled\n")
    assert [invoke("wait", "run", job, cwd=tmp_path).returncode for job in ("one", "two")] == [
        0,
        1,
    ], "it is over"
    assert invoke("status", "run", "--exit-code", cwd=tmp_path).returncode == 1
    wrong = invoke("wait", "run", "--timeout", "soon", cwd=tmp_path)
    assert (wrong.returncode, "--timeout soon" in wrong.stderr) == (2, True)


@pytest.mark.nightly
def test_who_waits_is_told_that_the_supervisor_was_killed_and_may_give_up(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    typed("run", jobs, "--run-dir", "run", "--detach", cwd=tmp_path)
    with waiting(tmp_path) as gives_up, waiting(tmp_path) as stays:
        gives_up.send_signal(signal.SIGINT)
        _, err = gives_up.communicate(timeout=commands.PATIENCE_S)
        assert (gives_up.returncode, "continues" in err) == (130, True)
        os.kill(supervisor(run_dir).pid, signal.SIGKILL)
        out, err = stays.communicate(timeout=commands.PATIENCE_S)
    assert (stays.returncode, "was killed" in err) == (1, True)
    assert out == "run: 2 pending\n"
    again = invoke("wait", "run", cwd=tmp_path)
    assert (again.returncode, "was killed" in again.stderr) == (1, True)


@pytest.mark.nightly
def test_a_stopped_experiment_ends_who_follows_with_its_exit_code(
    jobs: Path, tmp_path: Path, run_dir: Path
) -> None:
    typed("run", jobs, "--run-dir", "run", "--detach", cwd=tmp_path)
    follower = following(tmp_path)
    assert invoke("stop", "run", "--wait", cwd=tmp_path).returncode == 0
    out, _ = follower.communicate(timeout=commands.PATIENCE_S)
    assert (follower.returncode, "`run run` resumes it" in out) == (130, True)
    assert "stopping (requested by `stop`)" in (run_dir / "supervisor.log").read_text()


def test_a_run_directory_that_is_removed_ends_attach_with_that_message(tmp_path: Path) -> None:
    with run_directory.claim(tmp_path / "run") as paths:
        ServerLedger.create(paths.ledger).close()
        followed = attach.supervisor_to_follow(paths.root)
        paths.root.rename(tmp_path / "elsewhere")
        end = attach.follow(*followed, RunDisplay(LineReporter()))
    assert (end.exit_code, "removed or renamed" in end.message) == (1, True)
