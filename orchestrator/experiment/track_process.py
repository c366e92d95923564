"""The process that tells experiment trackers of a run, as its supervisor has it beside itself.

It reads the run directory alone (:mod:`orchestrator.track.tracker`), so that workers know nothing of trackers, and it
takes only CPU time that nothing else wants. Whatever happens to it, the experiment goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.paths import RunPaths
from orchestrator.core.process_setup import AT_ONCE
from orchestrator.core.regular_files import open_regular, read_up_to
from orchestrator.core.text import joined
from orchestrator.experiment.side_process import SideProcess
from orchestrator.jobfile import Experiment
from orchestrator.supervisor.events import Reporter

MODULE = "orchestrator.track"
FINISH = b"\n"
"""Tells the process to send what there is and end."""
WARNING = "warning: "
"""Begins lines of its log that are passed on."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""From a start to the next one; each is twice the one before."""
MOST_BYTES = 1 << 16
"""Of its log that are read at once."""
POLL_S = 0.05
PATIENCE_S = 10.0
"""How long the process with the lowest priority may take to finish, on a machine that other programs use."""
TIME_LIMIT_S = 30.0
"""How long the end of a run waits for its trackers."""


@dataclass(slots=True, kw_only=True)
class TrackProcess:
    """Starts the process, starts it again if it dies, and passes its warnings on."""

    experiment: Experiment
    paths: RunPaths
    reporter: Reporter
    _process: SideProcess = field(init=False)
    _read_up_to: int = field(default=0, init=False)
    _pause_s: float = field(default=FIRST_PAUSE_S, init=False)
    _start_at: float = field(default=0.0, init=False)
    """Not before that moment."""
    _warned: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        command = [MODULE, str(self.paths.root.absolute())]
        self._process = SideProcess(arguments=command, run_dir=self.paths.root, log=self.paths.track_log)

    @contextlib.contextmanager
    def running(self) -> Iterator[TrackProcess]:
        """The process ends with the block."""
        with contextlib.suppress(OSError):  # what is there is of an earlier run
            self._read_up_to = self.paths.track_log.stat().st_size
        try:
            yield self
        finally:
            self.end()

    def end(self) -> None:
        """Kill what still runs of it. May be called again."""
        self._process.end()

    def _declare(self) -> None:
        self.paths.track_declared.parent.mkdir(exist_ok=True)
        content = {"name": self.experiment.name, "trackers": self.experiment.trackers}
        write_whole(self.paths.track_declared, json.dumps(content, indent=1, default=dict) + "\n")

    def look_after(self) -> None:
        """Start it if it does not run, once the supervisor does. To be called often; raises nothing of its files."""
        if not self.experiment.trackers:
            return
        self._pass_warnings_on()
        if self._process.is_alive or time.monotonic() < self._start_at:
            return
        if self._process.starts == 1:
            why = self._process.why_it_ended().removeprefix(WARNING)
            self._warn(f"the process that tells trackers of the jobs has ended ({why}); it is started again")
        self._start()

    def _start(self, *more: str) -> None:
        self._start_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        try:
            self._declare()
            self._process.start(*more)
        except OSError as error:
            self._warn(f"the process that tells trackers of the jobs could not be started: {error}")

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until everything has been sent, for :data:`TIME_LIMIT_S` at most and not after ``is_stopped``."""
        if not self.experiment.trackers:
            return
        began = time.monotonic()
        with contextlib.suppress(OSError):
            if self._process.is_alive:
                self._process.tell(FINISH)
                self._wait(began + PATIENCE_S, is_stopped)
        if self._process.exit_code != 0 and not is_stopped():
            self._start(AT_ONCE)
            self._wait(began + TIME_LIMIT_S, is_stopped)
        self.end()
        while self._pass_warnings_on():
            continue
        if self._process.exit_code != 0:
            names = joined(self.experiment.trackers)
            command = f"`publish {self.paths.root} --to NAME`"
            self._warn(f"{names} may not have everything of this run; {command} sends what is missing")

    def _wait(self, until: float, is_stopped: Callable[[], bool]) -> None:
        while self._process.is_alive and time.monotonic() < until and not is_stopped():
            time.sleep(POLL_S)

    def _pass_warnings_on(self) -> bool:
        """Returns whether there was something to read."""
        new = b""
        with contextlib.suppress(OSError):  # such as of a network's file system: the experiment goes on
            if self.paths.track_log.stat().st_size > self._read_up_to:
                with open_regular(self.paths.track_log) as log:
                    log.seek(self._read_up_to)
                    new = read_up_to(log, MOST_BYTES)
        whole = new if len(new) == MOST_BYTES and b"\n" not in new else new[: new.rfind(b"\n") + 1]
        self._read_up_to += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            if line.startswith(WARNING):
                self._warn(line.removeprefix(WARNING))
        return bool(whole)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.reporter.event("warning", f"trackers: {text}")
