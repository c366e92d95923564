"""A supervisor that is killed: nothing that it has started survives it, be it workers, ranks or
forked workers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_helpers import LIFELINE, await_files, await_gone

REPOSITORY = Path(__file__).parents[3]
SUPERVISOR = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from executor_helpers import (
    ASLEEP_FAMILY, PUPPET, family, forking, local, make_launch, make_rank_group, template_pid, until_heard
)
root, kind, worker = Path(sys.argv[3]), *sys.argv[4:]
command = (sys.executable, "-S", "-c", worker) if worker else PUPPET
with forking() if kind == "forked" else local(worker_command=command) as executor:
    launches = [make_launch(root, f"j{number}", ASLEEP_FAMILY, fork=kind == "forked") for number in range(3)]
    if kind == "ranks":
        launches = [make_rank_group(root, "a", *map(family, range(3)))]
    handles = [executor.submit(launch) for launch in launches]
    until_heard(executor, *handles)
    helpers = [executor._reaper._popen.pid, *([template_pid(executor)] if kind == "forked" else [])]
    workers = [worker.pid for handle in handles for worker in executor._groups[handle].running]
    print(*helpers, *workers, flush=True)
    while True:
        executor.poll(10.0)
"""

Started = tuple[subprocess.Popen[str], list[int], list[int]]


@contextlib.contextmanager
def supervising(
    root: Path, kind: str, worker: str = ""
) -> Iterator[tuple[subprocess.Popen[str], list[int], list[int]]]:
    """A supervisor of three workers, or of one attempt of three ranks: its process, the pids of its
    orphan reaper and of its template if it has one, and those of the workers.
    """
    helpers = str(REPOSITORY / "tests/helpers")
    command = [sys.executable, "-c", SUPERVISOR, str(REPOSITORY), helpers, str(root), kind, worker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pids = list(map(int, supervisor.stdout.readline().split()))
        yield supervisor, pids[:-3], pids[-3:]


def descendants(root: Path, kind: str) -> list[int]:
    pattern = "a/{name}-{place}" if kind == "ranks" else "j{place}/{name}"
    names = [
        pattern.format(name=name, place=place) for place in range(3) for name in ("child", "daemon")
    ]
    return [int(text) for text in await_files(*(root / name for name in names))]


@pytest.mark.parametrize(
    ("also", "kind"),
    [
        ("nobody", "workers"),
        ("all workers", "ranks"),
        pytest.param("nobody", "ranks", marks=pytest.mark.nightly),
        pytest.param("all workers", "workers", marks=pytest.mark.nightly),
        *(
            pytest.param(also, kind, marks=pytest.mark.nightly)
            for also in ("the first", "the last", "a stopped one")
            for kind in ("workers", "ranks")
        ),
    ],
)
def test_when_the_supervisor_is_killed_nothing_survives(
    tmp_path: Path, kind: str, also: str
) -> None:
    with supervising(tmp_path, kind) as (supervisor, helpers, workers):
        pids = [*helpers, *workers, *descendants(tmp_path, kind)]
        if also == "a stopped one":
            os.kill(workers[1], signal.SIGSTOP)
        victims = {"the first": workers[:1], "the last": workers[2:], "all workers": workers}.get(
            also, []
        )
        for pid in [supervisor.pid, *victims]:
            os.kill(pid, signal.SIGKILL)
        supervisor.wait()
    await_gone(pids)


@pytest.mark.parametrize(
    "also",
    [
        "nobody",
        *(
            pytest.param(also, marks=pytest.mark.nightly)
            for also in ("the template", "the orphan reaper")
        ),
    ],
)
def test_when_the_supervisor_is_killed_neither_template_nor_workers_survive(
    tmp_path: Path, also: str
) -> None:
    with supervising(tmp_path, "forked") as (supervisor, [reaper, template], workers):
        of_workers = [*workers, *descendants(tmp_path, "forked")]
        for pid in {"nobody": [], "the template": [template], "the orphan reaper": [reaper]}[also]:
            os.kill(pid, signal.SIGKILL)
        supervisor.kill()
        supervisor.wait()
    await_gone([reaper, template])
    if also == "the orphan reaper":  # puppets do not end by themselves, as workers do
        for pid in of_workers:
            os.kill(pid, signal.SIGKILL)
    await_gone(of_workers)


def test_when_the_terminal_signals_everybody_the_reaper_still_does_its_duty(tmp_path: Path) -> None:
    with supervising(tmp_path, "workers") as (supervisor, [reaper], workers):
        pids = [reaper, *workers, *descendants(tmp_path, "workers")]
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(reaper, number)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
    await_gone(pids)


@pytest.mark.parametrize("kind", ["workers", pytest.param("ranks", marks=pytest.mark.nightly)])
def test_when_supervisor_and_reaper_are_killed_together_workers_end_by_themselves(
    tmp_path: Path, kind: str
) -> None:
    with supervising(tmp_path, kind, LIFELINE) as (supervisor, [reaper], workers):
        os.kill(reaper, signal.SIGKILL)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
    await_gone([reaper, *workers])
