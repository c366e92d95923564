"""Supervisors as real processes, whose workers are those of ``little_worker.py``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from little_worker import weights_after
from supervisor_helpers import make_job

from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Request, RequestFolder
from orchestrator.server.settings import ReadyLine, RunSettings

HELPERS = Path(__file__).parent
PATIENCE_S = 60.0
"""Only reached if something is wrong."""


def little_job(
    name: str, total_timesteps: int = 200, *, sleep_s: float = 0.01, **values: Any
) -> Job:
    """A job of ``little_worker.py``."""
    spec = {"total_timesteps": total_timesteps, "hyperparameters": {"sleep_s": sleep_s}}
    return make_job(name, spec=spec | values.pop("spec", {}), start="exec", **values)


def enter(root: Path, *jobs: Job) -> RunPaths:
    """Make a run directory with these jobs."""
    root.mkdir()
    paths = RunPaths(root)
    ledger = ServerLedger.create(paths.ledger)
    ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in enumerate(jobs))
    ledger.close()
    paths.requests.mkdir()
    return paths


def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.01)


@dataclass(slots=True, kw_only=True)
class Server:
    """The process of a supervisor."""

    paths: RunPaths
    popen: subprocess.Popen[bytes]
    ready: ReadyLine

    def ask(self, verb: Any, *jobs: str, **args: Any) -> str:
        folder = RequestFolder(self.paths.requests)
        return folder.leave(Request(verb=verb, jobs=jobs, args=args, supervisor=self.ready.holder))

    def until_running(self, count: int) -> list[int]:
        """Return the pids of workers when so many have trained for a while."""
        until(lambda: len(trained(self.paths)) >= count, f"{count} jobs run")
        return workers(self.paths)

    def wait(self) -> int:
        return self.popen.wait(PATIENCE_S)


def settings_line(root: Path, **settings: Any) -> bytes:
    values: dict[str, Any] = {"client_pid": os.getpid(), "is_listed": False, "grace_s": 5.0}
    if "run_dir" in {field.name for field in dataclasses.fields(RunSettings)}:
        values["run_dir"] = str(root)
    return RunSettings(**values | settings).to_line()


def server_command(root: Path) -> list[str]:
    return [sys.executable, str(HELPERS / "little_server.py"), str(root)]


@contextlib.contextmanager
def serving(
    root: Path, *, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Server]:
    """A supervisor of the jobs in the ledger of ``root``; it ends with the block."""
    popen = subprocess.Popen(
        server_command(root),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HELPERS.parents[1]), **(environment or {})},
        start_new_session=True,
    )
    assert popen.stdin is not None
    assert popen.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            popen.stdin.write(settings_line(root, **settings))
            popen.stdin.flush()
        line = popen.stdout.readline()
        ready = ReadyLine.from_line(line) if line else ReadyLine()
        server = Server(paths=RunPaths(root), popen=popen, ready=ready)
        if ready.holder:
            addition = addition_args(Addition(as_it_is=True))
            with contextlib.suppress(OSError):
                server.ask("add", **addition)
        yield server
    finally:
        popen.kill()
        popen.wait()
        for stream in (popen.stdin, popen.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def reading(paths: RunPaths) -> Iterator[ServerLedger]:
    ledger = ServerLedger.open(paths.ledger, read_only=True, is_sound=True)
    try:
        yield ledger
    finally:
        ledger.abandon()


def states_in(paths: RunPaths) -> dict[str, str]:
    with reading(paths) as ledger:
        return {row.job_id: row.state.name for row in ledger.jobs()}


def trained(paths: RunPaths) -> list[str]:
    """Jobs that have checkpoints."""
    return [path.name for path in paths.jobs.glob("*") if list(path.glob("checkpoints/*.pt"))]


def workers(paths: RunPaths) -> list[int]:
    """Pids of the workers of RUNNING jobs."""
    sql = (
        "SELECT pid FROM attempts JOIN jobs USING (job_id)"
        " WHERE state = 'RUNNING' AND ended_at IS NULL AND pid IS NOT NULL"
    )
    with reading(paths) as ledger:
        return [pid for (pid,) in ledger.select(sql)]


def weights(paths: RunPaths) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in paths.jobs.glob("*/model.zip")}


def family_of(pid: int) -> list[int]:
    """A process with all of its descendants."""
    import psutil

    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


CLIENT = """
import os, subprocess, sys, time
command, line, forks = sys.argv[1].split("|"), sys.argv[2], sys.argv[3]
popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
popen.stdin.write(line.replace("CLIENT", str(os.getpid())).encode())
popen.stdin.flush()
print(popen.stdout.readline().decode(), end="", flush=True)
if forks == "forks" and os.fork() == 0:  # it holds the pipes
    time.sleep(600)
time.sleep(600)
"""


def assert_finished(paths: RunPaths, total_timesteps: int = 200) -> None:
    """All jobs have succeeded, with the weights of trainings that nobody has disturbed."""
    states = states_in(paths)
    assert set(states.values()) == {"SUCCEEDED"}
    assert set(weights(paths).values()) == {weights_after(total_timesteps)}
    assert weights(paths).keys() == states.keys()


@contextlib.contextmanager
def client(root: Path, *, forks: bool, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A client that has started a supervisor."""
    own = f'"client_pid": {os.getpid()}'
    line = settings_line(root, **settings).decode().replace(own, '"client_pid": CLIENT')
    command = "|".join(server_command(root))
    arguments = [command, line, "forks" if forks else ""]
    environment = {**os.environ, "PYTHONPATH": str(HELPERS.parents[1])}
    started = subprocess.Popen(
        [sys.executable, "-c", CLIENT, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert started.stdout is not None
    try:
        started.stdout.readline()
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        started.stdout.close()


def go_on(paths: RunPaths) -> None:
    """Ask the supervisor that runs to go on with the jobs of the ledger."""
    holder = run_directory.holder(paths)
    assert holder is not None
    server = Server(paths=paths, popen=None, ready=ReadyLine(holder=holder.key))  # type: ignore[arg-type]
    server.ask("add", **addition_args(Addition(as_it_is=True)))


def finish(root: Path) -> RunPaths:
    """Let a supervisor bring the jobs of a run directory to their end."""
    with serving(root) as server:
        assert server.wait() == 0
    return RunPaths(root)
