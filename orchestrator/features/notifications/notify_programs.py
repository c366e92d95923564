"""Programs of the user that are run when a job has failed and at the end: the table ``[notify]`` of
the job file.

    python -m orchestrator.features.notifications.notify_programs RUN_DIR SETTINGS JOBS_AT_ONCE

is the companion that follows the events and starts them. Each is a process group of its own, which
is killed when it has taken :data:`TIME_LIMIT_S`; only so many run at once, and the others wait for
their turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.client.follow import Follower
from orchestrator.client.requests import report
from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.job import Cause
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import end_group, has_ended, spawn
from orchestrator.core.text import plain, shortened
from orchestrator.experiment import run_directory, run_end
from orchestrator.features.notifications.notify_table import Notify
from orchestrator.server.companions import ALL_ENDED, DONE, Companion, RunFacts

TIME_LIMIT_S = 60.0
AT_ONCE = 4
LOOK_EVERY_S = 0.25
POLL_S = 0.05
MOST_LOG_BYTES = 16 << 20
STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "PENDING", "PAUSED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The second argument of the process, as JSON."""

    on_failure: Sequence[str]
    on_end: Sequence[str]
    experiment: str
    base: str
    """Where the programs are started."""
    cursor: int
    """Id of the last event before the run."""


def companion(run: RunFacts, notify: Notify) -> Companion:
    """Return the companion that starts the programs."""
    settings = Settings(
        on_failure=notify.on_failure,
        on_end=notify.on_end,
        experiment=run.name,
        base=str(run.base),
        cursor=run.ledger.last_event_id(),
    )
    return Companion(
        name="notifications",
        module="orchestrator.features.notifications.notify_programs",
        arguments=[json.dumps(dataclasses.asdict(settings))],
        log=_log_path(run.paths.root),
        kind="after",
        patience_s=TIME_LIMIT_S + 5.0,
    )


def _log_path(run_dir: Path) -> Path:
    """Output of the programs."""
    return run_dir / "notify.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A program to be started."""

    key: str
    """``on_end`` or ``on_failure``."""
    command: Sequence[str]
    facts: Mapping[str, object]
    """Values of its environment variables, by name without the prefix."""


@dataclass(frozen=True, slots=True)
class NotifyProcess:
    notification: Notification
    popen: subprocess.Popen[bytes]
    deadline: float


@dataclass(slots=True, kw_only=True)
class NotifyPrograms:
    """Starts programs, and ends those that take too long."""

    run_dir: Path
    """Absolute."""
    settings: Settings
    waiting: deque[Notification] = field(default_factory=deque, init=False)
    running: list[NotifyProcess] = field(default_factory=list, init=False)
    _warned: set[str] = field(default_factory=set, init=False)
    """Texts of warnings: of hundreds of programs that fail alike, one is enough."""

    def note_failure(self, job_id: str, message: str, facts: Mapping[str, Any]) -> None:
        """Let the program of ``on_failure`` be started for a job that has FAILED."""
        variables = {
            "JOB": job_id,
            "JOB_DIR": RunPaths(self.run_dir).job(job_id).root,
            "CAUSE": facts.get("cause", Cause.LAUNCH),
            "MESSAGE": facts.get("reason", message),
        }
        command = self.settings.on_failure
        if command:
            self.waiting.append(Notification(key="on_failure", command=command, facts=variables))

    def note_end(self) -> None:
        """Start the program of ``on_end`` at once: it does not wait for its turn."""
        paths = RunPaths(self.run_dir)
        end = run_end.read(paths)
        if end is None or not self.settings.on_end:
            return
        with run_directory.reading_ledger(paths) as ledger:
            counts = ledger.counts()
        states = {name: counts.get(name, 0) for name in STATES}
        # Left so where the cluster or the ledger was lost.
        states["PENDING"] += counts.get("RUNNING", 0)
        facts = {"EXIT_CODE": end.exit_code, "MESSAGE": end.message, **states}
        self._start(Notification(key="on_end", command=self.settings.on_end, facts=facts))

    def tick(self) -> None:
        """Reap the programs that have ended, kill those that take too long, and start those that
        wait.
        """
        for process in list(self.running):
            is_over = has_ended(process.popen.pid)
            if is_over or time.monotonic() > process.deadline:
                self.running.remove(process)
                self._end(process, is_late=not is_over)
        while self.waiting and len(self.running) < AT_ONCE:
            self._start(self.waiting.popleft())

    def finish(self) -> None:
        """Wait for all programs, for :data:`TIME_LIMIT_S` at most."""
        give_up_at = time.monotonic() + TIME_LIMIT_S
        while (self.waiting or self.running) and time.monotonic() < give_up_at:
            self.tick()
            time.sleep(POLL_S)
        for process in self.running:
            self._end(process, is_late=True)
        if self.waiting:
            self._warn(self.waiting[0], f"was not started for {len(self.waiting)} jobs: no time")

    def _start(self, notification: Notification) -> None:
        base = Path(self.settings.base)
        try:
            with self._open_log() as log:
                when = time.strftime("%Y-%m-%d %H:%M:%S")
                what = shlex.join(notification.command)
                log.write(f"--- {when} {notification.key}: {what}\n".encode(errors="replace"))
                popen = spawn(
                    notification.command,
                    folder=base if base.is_dir() else self.run_dir,
                    environment={**os.environ, **self._variables(notification)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._warn(notification, f"could not be started: {why}")
        else:
            self.running.append(NotifyProcess(notification, popen, time.monotonic() + TIME_LIMIT_S))

    def _open_log(self) -> Any:
        log = open(_log_path(self.run_dir), "ab", buffering=0, opener=no_follow)  # noqa: SIM115
        if log.tell() > MOST_LOG_BYTES:
            log.truncate(0)
        return log

    def _variables(self, notification: Notification) -> dict[str, str]:
        common = {
            "EVENT": notification.key.removeprefix("on_"),
            "RUN_DIR": self.run_dir,
            "EXPERIMENT": self.settings.experiment,
        }
        return {
            f"ORCHESTRATOR_{name}": _variable(value)
            for name, value in {**common, **notification.facts}.items()
        }

    def _end(self, process: NotifyProcess, *, is_late: bool) -> None:
        code = _kill(process.popen)
        if is_late:
            how = "cannot be killed, as it runs as another user" if code is None else "was killed"
            self._warn(process.notification, f"took more than {TIME_LIMIT_S:.0f} s and {how}")
        elif code:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            where = _log_path(self.run_dir)
            self._warn(process.notification, f"ended with {how}; its output is in {where}")

    def _warn(self, notification: Notification, what: str) -> None:
        text = f"notify.{notification.key}: {notification.command[0]} {what}"
        if text in self._warned:
            return
        self._warned.add(text)
        print(text, flush=True)
        if notification.key == "on_failure":
            report(self.run_dir, "warning", text, notify=notification.key)


def _kill(popen: subprocess.Popen[bytes]) -> int | None:
    """Kill what is left of a program. Return its exit code, or None if it runs on as another user,
    as with `sudo`.
    """
    try:
        return end_group(popen)
    except PermissionError:
        return popen.poll()


def _variable(value: object) -> str:
    """A path as it is; of other text what a variable can hold, which is neither a null character
    nor a megabyte.
    """
    return str(value) if isinstance(value, Path) else plain(shortened(str(value)), keep="\n\t")


def main(run_dir: str, settings: str) -> int:
    programs = NotifyPrograms(run_dir=Path(run_dir), settings=Settings(**json.loads(settings)))
    cursor = programs.settings.cursor
    is_over = False
    while not is_over:
        if select.select([0], [], [], LOOK_EVERY_S)[0]:
            told = os.read(0, 1024)
            if not told:  # the supervisor has ended
                return 1
            is_over = ALL_ENDED in told
        # Not kept open: the supervisor closes the ledger at the end.
        with contextlib.closing(Follower(programs.run_dir, cursor)) as follower:
            events = follower.new()
        for event in events:
            cursor = event.id
            if event.kind == "failed" and event.job_id is not None:
                programs.note_failure(event.job_id, event.message, event.facts)
        programs.tick()
    programs.note_end()
    programs.finish()
    return DONE


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
