"""Launches of puppets (``puppet.py``) and waiting for what becomes of them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from orchestrator.core.messages import Progress
from orchestrator.core.processes.procfs import process_stat
from orchestrator.executors import worker_template
from orchestrator.executors.executor import AttemptId, Event, Exited, Progressed
from orchestrator.executors.launcher import Launch, Launcher
from orchestrator.executors.processes import Processes

PUPPET = (sys.executable, "-I", "-S", str(Path(__file__).with_name("puppet.py")))
DEADLINE_S = 60.0
"""Generous: it is only ever reached where something is wrong."""

Order = tuple[str, Any]
READY = Progress(phase="starting").to_line().decode()
ASLEEP: list[Order] = [("say", READY), ("sleep", None)]
IGNORES_STOP: list[Order] = [("when asked", None), *ASLEEP]
ASLEEP_FAMILY: list[Order] = [
    ("when asked", None),
    ("fork", "child"),
    ("daemon", "daemon"),
    ("say", READY),
    ("sleep", None),
]

LIFELINE = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from orchestrator.worker.runtime import supervisor_connection
from orchestrator.core.messages import Progress
from orchestrator.core.processes.procfs import process_stat
channel = supervisor_connection.attach()
if os.environ.get("RANK", "0") == "0":
    channel.send(Progress(phase="starting").to_line())
time.sleep(600)
"""
"""A worker that ignores a stop, and ends when its supervisor does: the lifeline's doing."""


def descriptors() -> int:
    """How many this process has open, without those that only garbage of earlier tests holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def family(rank: int, then: Iterable[Order] = ASLEEP_FAMILY[-2:]) -> list[Order]:
    """A rank with a child in its group and a descendant in a session of its own, their pids in
    files."""
    return [("when asked", None), ("fork", f"child-{rank}"), ("daemon", f"daemon-{rank}"), *then]


def make_launch(
    root: Path, job_id: str, orders: Iterable[Order] = (), number: int = 0, **changes: Any
) -> Launch:
    job_dir = root / job_id
    (job_dir / "attempts" / str(number)).mkdir(parents=True, exist_ok=True)
    (job_dir / "spec.json").write_text(json.dumps(list(orders)))
    values: dict[str, Any] = {"cpus": tuple(os.sched_getaffinity(0)), "gpus": (), "threads": 1}
    return Launch(job_id=job_id, number=number, job_dir=job_dir, **values | changes)


def make_rank_group(root: Path, job_id: str, *orders: Iterable[Order], **changes: Any) -> Launch:
    """A launch of as many ranks as there are ``orders``; each may use every CPU, unless ``cpus``
    says otherwise."""
    cpus = tuple(os.sched_getaffinity(0)) * len(orders)
    launch = make_launch(root, job_id, **{"cpus": cpus, "ranks": len(orders)} | changes)
    of_ranks = {str(rank): list(of_rank) for rank, of_rank in enumerate(orders)}
    (launch.job_dir / "spec.json").write_text(json.dumps(of_ranks))
    return launch


def events_until(executor: Launcher, condition: Callable[[list[Event]], bool]) -> list[Event]:
    """Everything polled up to and with the event that makes ``condition`` true."""
    deadline = time.monotonic() + DEADLINE_S
    events: list[Event] = []
    while not condition(events):
        assert time.monotonic() < deadline, f"in vain; events so far: {events}"
        events += executor.poll(1.0)
    return events


def until_it_waits(pid: int) -> None:
    """Until the process waits for something, or has ended: in a row of looks it does not run, and
    uses no CPU time."""
    looks: list[float] = []
    while len(looks) < 20 or looks[-1] > looks[-20]:
        stat = process_stat(pid)
        if stat is None or stat.state == "Z":
            return
        looks = [*looks, stat.own_ticks] if stat.state == "S" else []
        time.sleep(0.005)


def until_exit(executor: Launcher, *handles: AttemptId) -> dict[AttemptId, Exited]:
    """The ends of ``handles``."""

    def ends(events: list[Event]) -> dict[AttemptId, Exited]:
        return {event.attempt: event for event in events if isinstance(event, Exited)}

    return ends(events_until(executor, lambda events: ends(events).keys() >= set(handles)))


def pid_of(executor: Processes, attempt: AttemptId) -> int:
    """That of its rank 0, which runs."""
    return executor._groups[attempt].running[0].pid


def until_heard(executor: Launcher, *handles: AttemptId) -> list[Event]:
    """Until each of ``handles`` has reported progress."""

    def heard(events: list[Event]) -> bool:
        return {event.attempt for event in events if isinstance(event, Progressed)} >= set(handles)

    return events_until(executor, heard)


def await_files(*paths: Path) -> list[str]:
    """Their contents, once they are there."""
    deadline = time.monotonic() + DEADLINE_S
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"in vain: {paths}"
        time.sleep(0.002)
    return [path.read_text() for path in paths]


def await_gone(pids: Iterable[int]) -> None:
    """Until none of them runs; awaits the event itself."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([descriptor], [], [], DEADLINE_S)
        finally:
            os.close(descriptor)
        assert ready, f"process {pid} is still there: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"


@contextlib.contextmanager
def local(**settings: Any) -> Iterator[Processes]:
    """A local executor over puppets."""
    executor = Processes(**{"worker_command": PUPPET} | settings)
    try:
        yield executor
    finally:
        executor.close()


TEMPLATE = """
import os, runpy, sys
from orchestrator.worker import template
from orchestrator.worker.runtime import sibling_fork
def run(arguments):
    runpy.run_path({puppet!r}, run_name="__main__")
    os._exit(0)
def prepare():
    {prepare}
template.serve(prepare, run)
"""


def puppet_template(prepare: str = "pass") -> tuple[str, ...]:
    """A template process that imports nothing and forks puppets. :param prepare: what it does
    first, in one line."""
    return sys.executable, "-c", TEMPLATE.format(puppet=PUPPET[-1], prepare=prepare)


def template_pid(executor: Processes) -> int:
    """That of its template process, which has been started."""
    assert executor._template._popen is not None
    return executor._template._popen.pid


@contextlib.contextmanager
def forking(prepare: str = "pass") -> Iterator[Processes]:
    """A local executor with a :func:`puppet_template`, for which launches wait."""
    patience = mock.patch.object(worker_template, "IMPORT_PATIENCE_S", DEADLINE_S)
    with patience, local(template_command=puppet_template(prepare)) as executor:
        yield executor
