"""SIGKILL at any instant: nothing survives, nothing is lost, and not one bit differs in the end.

Six kills of an experiment of all six robots are nightly; ``tests.soak`` kills for as long as one
likes.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
import worker_helpers as worker
from command_helpers import (
    REPOSITORY,
    Run,
    carriers,
    succeed,
    token_of,
    wait_until,
    write_experiment,
)

from orchestrator.core.paths import JobPaths
from orchestrator.core.processes.procfs import is_running
from orchestrator.machine.process_identity import process_start
from orchestrator.server import leftovers
from orchestrator.server.requests import Request, RequestFolder

ROBOTS = ("quadruped", "hexapod", "walker", "hopper", "runner", "balancer")
GONE_WITHIN_S = 2.0
STEPS = 4096
START_S = 2.0
"""About what a supervisor and its workers need before they train, on a slow machine."""
DISTURBED = 0.7
"""The part of the training in which kills strike: some must be left, however slow the process that
kills."""


def experiment(cwd: Path, robots: tuple[str, ...], total_timesteps: int, **more: Any) -> Path:
    jobs = [
        {
            "name": name,
            "xml": REPOSITORY / f"mjcf/{name}.xml",
            "task": "balance" if name == "balancer" else "forward",
            "total_timesteps": total_timesteps,
            "checkpoint_every": 256,
            "eval_episodes": 1,
            "task_options": {"max_episode_steps": 200},
            "preview": False,
            **more,
        }
        for name in robots
    ]
    return write_experiment(cwd, *jobs)


def kill_and_look(run: Run, *, worker_too: bool = False) -> bool:
    """SIGKILL the supervisor (and a worker and the client at once); within two seconds no process of
    it is left. Before any worker is at work, the client dies as well: it would start a supervisor
    again that has not answered it.

    Returns whether it struck while a worker was at work.
    """
    supervisor = supervisor_of(run.popen.pid)
    if supervisor is None:  # it has ended by itself, or not begun
        run.popen.kill()
        run.popen.wait()
        return False
    # So that it launches nothing between our look and its end.
    commands.kill(supervisor, signal.SIGSTOP)
    workers = workers_of(supervisor)
    tokens = set(workers.values())
    if worker_too or not workers:
        run.popen.kill()
    commands.kill(supervisor)
    if worker_too and workers:
        commands.kill(next(iter(workers)))
    wait_until(
        lambda: not any(map(carriers, tokens)), "no process survives", patience_s=GONE_WITHIN_S
    )
    run.popen.wait()
    return bool(workers)


def supervisor_of(client: int) -> int | None:
    """The supervisor that a client has started; None if it has ended."""
    with contextlib.suppress(FileNotFoundError):
        for pid in Path(f"/proc/{client}/task/{client}/children").read_text().split():
            if "orchestrator.server" in commands.command_of(int(pid)):
                return int(pid)
    return None


def workers_of(supervisor: int) -> dict[int, bytes]:
    """Pids and token of the workers under ``supervisor``."""
    tokens = {}
    with contextlib.suppress(FileNotFoundError):  # it has ended by itself
        for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
            with contextlib.suppress(OSError, KeyError):  # gone meanwhile; or no worker
                tokens[int(pid)] = token_of(int(pid))
    return tokens


def finish(jobs: Path, cwd: Path) -> None:
    succeed("run", jobs, "--run-dir", "run", cwd=cwd)
    assert {row["state"] for row in commands.summary(cwd / "run").values()} == {"SUCCEEDED"}


def assert_same_bits_as_alone(cwd: Path, robots: tuple[str, ...]) -> None:
    """Each job has the bits of a training alone, in this process, that nothing disturbs."""
    for name in robots:
        mine = JobPaths(cwd / f"run/jobs/{name}-s0")
        alone, _ = worker.train_again(mine, cwd / f"alone/{name}")
        assert worker.same_bits(worker.parameters(mine.model), worker.parameters(alone.model)), name
        assert worker.normalization(mine.vecnormalize) == worker.normalization(
            alone.vecnormalize
        ), name
        assert mine.eval.read_bytes() == alone.eval.read_bytes(), name
        assert logged(mine) == logged(alone), name


def logged(paths: JobPaths) -> list[dict[str, str]]:
    """The rows of ``progress.csv``, without what is a time, which no iteration lacks or has twice."""
    times = {"time/fps", "time/time_elapsed"}
    rows = worker.rows(paths.progress_csv)
    assert [row["env_steps"] for row in worker.rows(paths.timings_csv)] == [
        row["time/total_timesteps"] for row in rows
    ]
    return [{key: cell for key, cell in row.items() if key not in times} for row in rows]


def trained_steps(cwd: Path) -> int:
    """The steps that the newest checkpoints of all jobs hold."""
    newest: dict[Path, int] = {}
    for path in cwd.glob("run/jobs/*/checkpoints/checkpoint-*.pt"):
        newest[path.parent] = max(newest.get(path.parent, 0), int(path.stem.rpartition("-")[2]))
    return sum(newest.values())


def disturb(
    cwd: Path, robots: tuple[str, ...], total_timesteps: int, kills: int, **more: Any
) -> None:
    """Kill at ``kills`` random instants, every third before it trains, the others while it does;
    then let it finish.

    An instant in training is drawn from what is trained by then, so that it comes however fast this
    machine is.
    """
    jobs = experiment(cwd, robots, total_timesteps, **more)
    dice = random.Random(os.urandom(8))
    for count in range(kills):
        instant = DISTURBED * len(robots) * total_timesteps * dice.uniform(count, count + 1) / kills
        with Run(jobs, "--run-dir", "run", cwd=cwd) as run:
            if count % 3 == 0:
                deadline = time.monotonic() + dice.uniform(0.0, START_S)
                while time.monotonic() < deadline and trained_steps(cwd) < instant:
                    time.sleep(0.01)
                kill_and_look(run, worker_too=count % 2 == 1)
            else:
                instant = max(instant, trained_steps(cwd) + 1)
                wait_until(
                    lambda instant=instant: trained_steps(cwd) >= instant,
                    f"{instant:.0f} steps trained",
                )
                time.sleep(dice.uniform(0.0, 0.02))  # not always just after a checkpoint
                assert kill_and_look(run, worker_too=count % 2 == 1), (
                    "it strikes while a worker trains"
                )
    finish(jobs, cwd)


def check_kills(
    tmp_path: Path, robots: tuple[str, ...], total_timesteps: int, kills: int, **more: Any
) -> None:
    disturb(tmp_path / "disturbed", robots, total_timesteps, kills, **more)
    with contextlib.closing(sqlite3.connect(tmp_path / "disturbed/run/ledger.sqlite3")) as ledger:
        unaccounted = ledger.execute(
            "SELECT count(*) FROM attempts WHERE wall_s IS NULL OR ended_at IS NULL"
        ).fetchone()
    assert unaccounted == (0,), "every second is accounted for, those of killed attempts too"
    assert_same_bits_as_alone(tmp_path / "disturbed", robots)


def test_supervisor_killed_at_random_instants_loses_nothing(tmp_path: Path) -> None:
    check_kills(tmp_path, ("hopper",), STEPS, kills=2)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_supervisor_killed_six_times_loses_nothing_of_six_robots(tmp_path: Path) -> None:
    check_kills(tmp_path, ROBOTS, STEPS // 2, kills=6)


@pytest.mark.nightly
def test_what_was_asked_of_a_supervisor_that_was_killed_does_not_stop_the_next(
    tmp_path: Path,
) -> None:
    robots = ("hopper", "walker")
    jobs = experiment(tmp_path, robots, 1024)
    with Run(jobs, "--run-dir", "run", cwd=tmp_path, typed=commands.stubbed) as run:
        run.until("launched")
        kill_and_look(run)
    folder = RequestFolder(tmp_path / "run/requests")
    folder.leave(Request(verb="stop", supervisor="the one that was killed"))
    folder.leave(Request(verb="cancel", jobs=["walker-s0"]))
    (tmp_path / "go-hopper-s0").touch()
    again = commands.stubbed("run", jobs, "--run-dir", "run")
    assert (
        subprocess.run(again, cwd=tmp_path, env=commands.environment(), check=False).returncode == 1
    )
    states = {job_id: row["state"] for job_id, row in commands.summary(tmp_path / "run").items()}
    assert states == {"hopper-s0": "SUCCEEDED", "walker-s0": "CANCELLED"}


def test_a_worker_left_behind_is_ended_but_nobody_else_with_its_number_and_not_that_of_a_copy(
    tmp_path: Path,
) -> None:
    log = tmp_path / "worker.log"
    copy = tmp_path / "copy.log"
    copy.touch()
    with (
        log.open("wb") as file,
        subprocess.Popen(["sleep", "600"], stdout=file, start_new_session=True) as process,
    ):
        start = process_start(process.pid)
        assert start is not None
        leftovers.kill_leftover(process.pid, start + 1, log)
        leftovers.kill_leftover(process.pid, start, copy)
        assert process.poll() is None
        leftovers.kill_leftover(process.pid, start, log)
        assert process.wait() == -signal.SIGKILL


def test_an_examination_that_hangs_does_not_outlive_the_supervisor(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {"name": "slow", "entry_point": "slow:make"})
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with Run(jobs, "--run-dir", "run", cwd=tmp_path) as run:
        pid = wait_until(
            lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it is examined"
        )
        run.signal(signal.SIGKILL)
        wait_until(
            lambda: not is_running(int(pid)), "no process survives", patience_s=GONE_WITHIN_S
        )
