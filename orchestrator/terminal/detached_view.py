"""What ``run --detach`` shows: events on the terminal until the first jobs run, and in a file all
the time.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.core.files.atomic_files import opened_log
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, plain
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.processes.detach import DetachedProcess, Underway
from orchestrator.supervisor.events import DetachableReporter, Reporter, View
from orchestrator.terminal.background_output import is_read
from orchestrator.terminal.run_view import JsonReporter, LineReporter, json_line

PATIENCE_S = 5.0
"""How long the terminal may take to show what was printed before it is left."""


def reporter(process: DetachedProcess, run_dir: Path, *, as_json: bool) -> Reporter:
    detached = _DetachedReporter(process, run_dir, as_json=as_json)
    return DetachableReporter(detached, run_directory.error_record(run_dir))


def show(underway: Underway, *, as_json: bool) -> None:
    """Say what runs now, and what to type to follow and to stop it."""
    run_dir = underway.run_dir
    pid = underway.pid
    jobs = count(underway.jobs, "job")
    if underway.running or not underway.pending:
        now = f"{underway.running:,} of {jobs} run now"
    else:
        now = f"none of {jobs} runs yet, since there is no room for one"
    text = f"{run_dir}: {now}. The experiment continues without this terminal, supervised by process {pid}."
    if as_json:
        facts = {"run_dir": run_dir, "pid": pid, "log": underway.log, "running": underway.running}
        print(json_line("detached", text, facts), end="")
        return
    argument = shlex.quote(run_dir)
    lines = [
        text,
        f"To follow it:  python -m orchestrator attach {argument}",
        f"To stop it:    python -m orchestrator stop {argument}",
        f"Its output is in {underway.log}.",
    ]
    print(plain("\n".join(lines), keep="\n"))


class _DetachedReporter:
    """Reports to the terminal as well, until the supervisor has launched what it could, and then
    leaves it.
    """

    def __init__(self, process: DetachedProcess, run_dir: Path, *, as_json: bool) -> None:
        self._process = process
        self._paths = RunPaths(run_dir)
        self._as_json = as_json
        self._log: Reporter | None = None
        self._log_descriptor = -1
        self._terminal: Reporter | None = self._lines(None)
        """None when the terminal has been left."""
        self._leave_at: float | None = None

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if self._terminal is not None:
            self._terminal.event(kind, message, **facts)
        self._opened_log().event(kind, message, **facts)

    def tick(self, view: Callable[[], View]) -> None:
        if self._terminal is None:
            self._opened_log().tick(view)
            return
        now = time.monotonic()
        if self._leave_at is None:
            self._leave_at = now + PATIENCE_S
        if is_read(sys.stdout) or now >= self._leave_at:
            self._leave(view())

    def _leave(self, view: View) -> None:
        self._opened_log()
        self._terminal = None
        underway = Underway(
            pid=os.getpid(),
            run_dir=str(self._paths.root),
            log=str(self._paths.supervisor_log),
            running=view.counts["RUNNING"],
            pending=view.counts["PENDING"],
            jobs=sum(view.counts.values()),
        )
        self._process.leave(self._log_descriptor, underway)

    def _opened_log(self) -> Reporter:
        """What reports to the log. It is opened at the first event: the run directory, in which it
        is, is there by then.
        """
        if self._log is None:
            log = opened_log(self._paths.supervisor_log, self._warn)
            self._log_descriptor = log
            self._log = self._lines(os.fdopen(log, "a", encoding="utf-8", errors="replace"))
        return self._log

    def _warn(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.event("warning", text)

    def _lines(self, out: Any) -> Reporter:
        lines = JsonReporter(out) if self._as_json else LineReporter(out)
        return DetachableReporter(lines, run_directory.error_record(self._paths.root))
