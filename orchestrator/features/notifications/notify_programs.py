"""Programs of the user that are run when a job has failed and at the end: the table ``[notify]`` of
the job file.

They run beside the supervisor, and nothing waits for them before its end. Each is a process group
of its own, which is killed when it has taken :data:`TIME_LIMIT_S`; only so many run at once, and
the others wait for their turn.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.files.atomic_files import no_follow
from orchestrator.core.job import Cause
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import end_group, has_ended, spawn
from orchestrator.core.text import count, plain, shortened
from orchestrator.experiment.beside_run import BesideRun, RunFacts
from orchestrator.experiment.directory.run_end import RunOutcome
from orchestrator.features.notifications.notify_table import Notify

TIME_LIMIT_S = 60.0
AT_ONCE = 4
POLL_S = 0.05
MOST_LOG_BYTES = 16 << 20
STATES = ("SUCCEEDED", "FAILED", "CANCELLED", "PENDING", "PAUSED")


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
class NotifyPrograms(BesideRun):
    """Starts the programs of ``[notify]``, and at the end of the run waits for the last of them.

    The program of ``on_end`` is started at the end, unless the supervisor never ran.
    """

    notify: Notify
    run: RunFacts
    _waiting: deque[Notification] = field(default_factory=deque, init=False)
    _running: list[NotifyProcess] = field(default_factory=list, init=False)
    _warned: set[str] = field(default_factory=set, init=False)
    """Texts of warnings: of hundreds of programs that fail alike, one is enough."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        command = self.notify.on_failure
        if kind == "failed" and command:
            job_id = facts["job_id"]
            variables = {
                "JOB": job_id,
                "JOB_DIR": RunPaths(self.run.run_dir.absolute()).job(job_id).root,
                "CAUSE": facts.get("cause", Cause.LAUNCH),
                "MESSAGE": facts.get("reason", message),
            }
            self._waiting.append(Notification(key="on_failure", command=command, facts=variables))

    def after_turn(self) -> None:
        """Reap the programs that have ended, kill those that take too long, and start those that
        wait.
        """
        for process in list(self._running):
            is_over = has_ended(process.popen.pid)
            if is_over or time.monotonic() > process.deadline:
                self._running.remove(process)
                self._end(process, is_late=not is_over)
        while self._waiting and len(self._running) < AT_ONCE:
            self._start(self._waiting.popleft())

    def after_end(self, outcome: RunOutcome, is_stopped: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + TIME_LIMIT_S
        if outcome.counts is not None and self.notify.on_end:
            counts = outcome.counts()
            states = {name: counts.get(name, 0) for name in STATES}
            # Left so where the cluster or the ledger was lost.
            states["PENDING"] += counts.get("RUNNING", 0)
            facts = {"EXIT_CODE": outcome.exit_code, "MESSAGE": outcome.message, **states}
            # At once, since it may be the last chance: it does not wait for its turn.
            self._start(Notification(key="on_end", command=self.notify.on_end, facts=facts))
        try:
            self.after_turn()
            while self._running and time.monotonic() < give_up_at and not is_stopped():
                time.sleep(POLL_S)
                self.after_turn()
        finally:
            self._give_up()

    def _give_up(self) -> None:
        left = []
        if self._running:
            left.append(f"{count(len(self._running), 'program')} of [notify] had not ended: killed")
        if self._waiting:
            left.append(f"{count(len(self._waiting), 'program')} of [notify] not started")
        if left:
            limit = f"a run waits {TIME_LIMIT_S:.0f} s for them at its end, or until Ctrl-C"
            self.run.reporter.event("warning", f"{'; '.join(left)}; {limit}")
        self._waiting.clear()
        for process in self._running:
            _kill(process.popen)
        self._running.clear()

    def _start(self, notification: Notification) -> None:
        base = self.run.experiment.base
        try:
            with self._open_log() as log:
                when = time.strftime("%Y-%m-%d %H:%M:%S")
                what = shlex.join(notification.command)
                log.write(f"--- {when} {notification.key}: {what}\n".encode(errors="replace"))
                popen = spawn(
                    notification.command,
                    folder=base if base.is_dir() else self.run.run_dir,
                    environment={**os.environ, **self._variables(notification)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._warn(notification, f"could not be started: {why}")
        else:
            self._running.append(
                NotifyProcess(notification, popen, time.monotonic() + TIME_LIMIT_S)
            )

    @property
    def _log_path(self) -> Path:
        """Output of the programs."""
        return self.run.run_dir / "notify.log"

    def _open_log(self) -> Any:
        log = open(self._log_path, "ab", buffering=0, opener=no_follow)  # noqa: SIM115
        if log.tell() > MOST_LOG_BYTES:
            log.truncate(0)
        return log

    def _variables(self, notification: Notification) -> dict[str, str]:
        event = notification.key.removeprefix("on_")
        common = {
            "EVENT": event,
            "RUN_DIR": self.run.run_dir.absolute(),
            "EXPERIMENT": self.run.experiment.name,
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
            self._warn(
                process.notification,
                f"ended with {how}; its output is in {self._log_path}",
            )

    def _warn(self, notification: Notification, what: str) -> None:
        text = f"notify.{notification.key}: {notification.command[0]} {what}"
        if text not in self._warned:
            self._warned.add(text)
            self.run.reporter.event("warning", text, notify=notification.key)


def _kill(popen: subprocess.Popen[bytes]) -> int | None:
    """Kill what is left of a program. Returns its exit code; None if it runs on as another user, as
    `sudo` does.
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
