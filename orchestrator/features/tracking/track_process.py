"""The process that tells experiment trackers of a run, as its supervisor has it beside itself.

It reads the run directory alone (:mod:`orchestrator.features.tracking.sending`), so that workers know nothing
of trackers. Its start costs seconds of CPU time, which it must not take from the jobs. While they
have all cores it takes only what nothing else wants; on a machine that others use, that may be
nothing for as long as they do. A process cannot get its priority back, so another one takes its
place when cores of this run are free. Whatever happens to it, the experiment goes on.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.file_status import status_of
from orchestrator.core.files.regular_files import open_regular, read_up_to
from orchestrator.core.text import joined
from orchestrator.experiment.beside_run import BesideRun
from orchestrator.experiment.processes.side_process import SideProcess
from orchestrator.features.tracking import files
from orchestrator.features.tracking.process_arguments import AT_ONCE, GIVE_WAY
from orchestrator.features.tracking.track_settings import Trackers
from orchestrator.supervisor.events import Reporter

MODULE = "orchestrator.features.tracking"
FINISH = b"\n"
"""Tells the process to send what there is and end."""
WARNING = "warning: "
"""Begins lines of its log that are passed on."""
HAS_BEGUN = "each tracker has been told for the first time"
"""A line of its log: what costs most is over."""
COMPLETE = "complete: "
"""Begins lines of its log that name a tracker which has everything of the run."""
FIRST_PAUSE_S = 10.0
"""From a start to the next one; each pause is twice the one before."""
LONGEST_PAUSE_S = 600.0
STEADY_S = 2.0
"""Cores that have been free for so long are not those of a job that is about to be launched."""
MOST_BYTES = 1 << 16
"""Of its log that are read at once."""
POLL_S = 0.05
PATIENCE_S = 5.0
"""How long the process with the lowest priority may take to finish, on a machine that other
programs use."""
TIME_LIMIT_S = 30.0
"""How long the end of a run waits for its trackers."""


@dataclass(slots=True, kw_only=True)
class TrackProcess(BesideRun):
    """Starts the process, starts it again if it dies, and passes its warnings on."""

    name: str
    """Of the experiment."""
    trackers: Trackers
    run_dir: Path
    reporter: Reporter
    has_free_cores: Callable[[], bool | None] = lambda: None
    """See :meth:`begin`."""
    _process: SideProcess = field(init=False)
    _read_up_to: int = field(default=0, init=False)
    _pause_s: float = field(default=FIRST_PAUSE_S, init=False)
    _start_at: float = field(default=0.0, init=False)
    """Not before that moment."""
    _free_since: float = field(default=math.inf, init=False)
    """When cores became free; infinite while there are none."""
    _gives_way: bool = field(default=False, init=False)
    """Whether the process has the lowest priority."""
    _has_begun: bool = field(default=False, init=False)
    """Whether the process has said :data:`HAS_BEGUN`."""
    _has_died: bool = field(default=False, init=False)
    """Whether a process has ended that should not."""
    _complete: set[str] = field(default_factory=set, init=False)
    """Trackers that have everything of the run."""
    _warned: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        command = [MODULE, str(self.run_dir.absolute())]
        log = files.log(self.run_dir)
        self._process = SideProcess(arguments=command, run_dir=self.run_dir, log=log)

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        self.has_free_cores = has_free_cores
        status = status_of(files.log(self.run_dir))
        self._read_up_to = 0 if status is None else status.st_size  # that is of an earlier run

    def end(self) -> None:
        """Kill what still runs of it. May be called again."""
        self._process.end()

    def _declare(self) -> None:
        declared = files.declaration_file(self.run_dir)
        declared.parent.mkdir(exist_ok=True)
        content = {"name": self.name, "trackers": self.trackers}
        write_whole(declared, json.dumps(content, indent=1, default=dict) + "\n")

    def before_turn(self) -> None:
        """Start it if it does not run, once jobs do; with a usual priority as soon as cores are
        free.

        To be called often; raises nothing of its files.
        """
        self._read_log()
        now = time.monotonic()
        has_free_cores = self.has_free_cores()
        if not has_free_cores:
            self._free_since = math.inf
        elif self._free_since == math.inf:
            self._free_since = now
        are_steadily_free = now - self._free_since >= STEADY_S
        if self._process.is_alive:
            if are_steadily_free and self._may_starve:
                self._start()
            return
        is_known = are_steadily_free or has_free_cores is False
        if not is_known or now < self._start_at:
            return
        if self._process.starts and not self._has_died:
            self._has_died = True
            why = self._process.why_it_ended().removeprefix(WARNING)
            self._warn(
                f"the process that tells trackers of the jobs has ended ({why}); it is started again"
            )
        self._start_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        if are_steadily_free:
            self._start()
        else:
            self._start(GIVE_WAY)

    @property
    def _may_starve(self) -> bool:
        """Whether it still has to do what costs most, and may get no CPU time for that."""
        return self._gives_way and not self._has_begun

    def _start(self, *more: str) -> None:
        """In place of the one that runs, if one does: what that has sent is noted, and is not sent
        again.
        """
        self._gives_way = GIVE_WAY in more
        self._has_begun = False
        try:
            self._declare()
            self._process.start(*more)
        except OSError as error:
            self._warn(f"the process that tells trackers of the jobs could not be started: {error}")

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until everything has been sent, for :data:`TIME_LIMIT_S` at most and not after
        ``is_stopped``.

        To be called when no job runs: whoever takes part in this has a usual priority.
        """
        until = time.monotonic() + TIME_LIMIT_S
        self._read_log()
        if self._process.is_alive and not self._may_starve:
            with contextlib.suppress(OSError):  # it has just ended: it is started again below
                self._process.tell(FINISH)
                self._wait(time.monotonic() + PATIENCE_S if self._gives_way else until, is_stopped)
        if self._process.exit_code != 0 and time.monotonic() < until and not is_stopped():
            self._start(AT_ONCE)
            self._wait(until, is_stopped)
        self.end()
        while self._read_log():
            continue
        incomplete = [name for name in self.trackers if name not in self._complete]
        if self._process.exit_code != 0 and incomplete:
            self._warn(
                f"{joined(incomplete)} may not have everything of this run; the next run sends what is missing"
            )

    def _wait(self, until: float, is_stopped: Callable[[], bool]) -> None:
        while self._process.is_alive and time.monotonic() < until and not is_stopped():
            time.sleep(POLL_S)

    def _read_log(self) -> bool:
        """Take in what the process has said since. Returns whether there was something to read."""
        new = self._new_text_of_log()
        is_one_long_line = len(new) == MOST_BYTES and b"\n" not in new
        whole_lines = new if is_one_long_line else new[: new.rfind(b"\n") + 1]
        self._read_up_to += len(whole_lines)
        for line in whole_lines.decode(errors="replace").splitlines():
            if line.startswith(WARNING):
                self._warn(line.removeprefix(WARNING))
            elif line.startswith(COMPLETE):
                self._complete.add(line.removeprefix(COMPLETE))
            elif line == HAS_BEGUN:
                self._has_begun = True
        return bool(whole_lines)

    def _new_text_of_log(self) -> bytes:
        """At most :data:`MOST_BYTES` of what was written since it was read last."""
        path = files.log(self.run_dir)
        # The network's file system may be away: the experiment goes on.
        with contextlib.suppress(OSError):
            if path.stat().st_size > self._read_up_to:
                with open_regular(path) as log:
                    log.seek(self._read_up_to)
                    return read_up_to(log, MOST_BYTES)
        return b""

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self.reporter.event("warning", f"trackers: {text}")
