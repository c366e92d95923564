"""Companions: processes of features that the supervisor starts beside a run, restarts and ends.

Each is a client: it reads the ledger with a cursor of its own, and leaves requests.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from orchestrator.core.feature import answers
from orchestrator.core.files.file_status import status_of
from orchestrator.core.job import State
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.side_process import SideProcess
from orchestrator.server.jobs import Report
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.retry_policy import backoff_s

if TYPE_CHECKING:  # which reads job files
    from orchestrator.experiment.begun_source import BegunSource
    from orchestrator.jobfile import Experiment

DONE = 10
"""Exit code of a companion: it has nothing more to do."""
WAITS_FOR_USER = 3
"""Exit code: it goes on when jobs that the user has paused are resumed."""
CANNOT_GO_ON = 2
"""Exit code: something has to be corrected first. The last line of its log says what."""
MOST_STARTS = 8
"""The last of them comes after more than a minute: by then a cause that passes has passed, such as a
lack of memory."""
STEADY_S = 600.0
"""A companion that has worked for so long is started again, however often that was done before."""
POLL_S = 0.05
ALL_ENDED = b"end\n"
"""Told to companions when all jobs have ended."""

Kind: TypeAlias = Literal["makes jobs", "beside", "at end", "after"]
"""When a companion runs.

- ``makes jobs``: while jobs run. The run does not end before it is done. When jobs are declared, it is
  replaced by that of the present declaration.
- ``beside``: while jobs run. When all have ended it is told so, and the run waits until it is done.
- ``at end``: when all jobs have ended. The run waits until it is done.
- ``after``: while jobs run, and after the run: it is told the end when the run directory is free.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """What a feature has beside a run: ``python -m MODULE RUN_DIR ARGUMENTS… JOBS_AT_ONCE``.

    A line on its standard input is the number of jobs at once, when that changes, or
    :data:`ALL_ENDED`. The input ends with the supervisor. It ends with one of the exit codes above;
    otherwise it is started again.
    """

    name: str
    """In messages: "the process of the search"."""
    kind: Kind
    module: str
    arguments: Sequence[str] = ()
    log: Path
    """Receives its output."""
    patience_s: float = 0.0
    """How long one that is told the end is waited for."""
    declaration: Path | None = None
    """A file that one that makes jobs has read: it is started anew when that is written again, as by
    `reload`."""
    stopped_file: Path | None = None
    """Receives why it cannot go on, for those who look at the run later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run that features are asked about."""

    paths: RunPaths
    ledger: ServerLedger
    """With an open transaction, which is committed next."""
    report: Report
    name: str
    """Of the experiment."""
    base: Path
    """Directory to which relative paths of the job file refer."""
    tables: Mapping[str, Any]
    """What the tables of features mean, by name."""
    experiment: Experiment | None
    """What a job file declares that has a job source; None for all others."""
    is_declared: bool
    """Whether jobs were declared, by a job file; otherwise the run directory goes on as it is."""
    robots: Mapping[str, str]
    """Hashes of the robots of the examples of ``experiment``, by ``job_id``."""
    is_listed: bool = True
    """Whether people have started the run, and no benchmark."""


@dataclass(slots=True, kw_only=True)
class _Running:
    """A companion with its process."""

    companion: Companion
    process: SideProcess
    end_code: int | None = None
    """The exit code with which it has ended for good; None: it runs, or is started again."""
    starts: int = 0
    """Since it had worked for :data:`STEADY_S`."""
    start_at: float | None = 0.0
    """It is started at that moment; None: it was."""
    told_jobs_at_once: int = 0
    declared_at: int = 0
    """When the declaration was written that it has read, in nanoseconds."""
    is_told_end: bool = False
    give_up_at: float | None = None
    """So long it is waited for at the end; None: that has not begun."""

    @property
    def makes_jobs(self) -> bool:
        return self.companion.kind == "makes jobs"

    @property
    def is_unfinished(self) -> bool:
        return self.end_code is None


@dataclass(slots=True, kw_only=True)
class Companions:
    """All companions of a run. Called by the loop of the supervisor; nothing waits in it."""

    paths: RunPaths
    report: Report
    jobs_at_once: Callable[[], int]
    now: Callable[[], float] = time.monotonic
    problem: str = field(default="", init=False)
    """Why a companion that makes jobs cannot go on; empty if none has failed."""
    _all: list[_Running] = field(default_factory=list, init=False)
    _is_ending: bool = field(default=False, init=False)
    """Whether all jobs have ended, so that the run ends next."""

    def begin(self, facts: RunFacts) -> None:
        """Ask every feature what it has beside the run. What makes jobs is replaced."""
        for old in list(self._all):
            if old.makes_jobs:
                old.process.end()
                self._all.remove(old)
        found = [one for _, given in answers("companions", facts) for one in given]
        known = {one.companion.name for one in self._all}
        self.problem = ""
        for companion in found:
            if companion.name in known:
                continue
            if companion.stopped_file is not None:
                companion.stopped_file.unlink(missing_ok=True)
            arguments = [companion.module, str(self.paths.root.absolute()), *companion.arguments]
            process = SideProcess(arguments=arguments, run_dir=self.paths.root, log=companion.log)
            self._all.append(_Running(companion=companion, process=process))

    def tick(self, *, has_work: bool, is_idle: bool) -> None:
        """Start, watch and restart companions, and let the run end.

        :param has_work: whether jobs run, or are due.
        :param is_idle: whether nothing but companions keeps the run from its end.
        """
        if has_work and self._is_ending:
            self._go_on()
        for one in self._all:
            if self._is_redeclared(one):
                one.process.end()
                self._start_again(one)
                text = f"the {one.companion.name} goes on as it is declared now"
                self.report("reloaded", text)
            if one.end_code == WAITS_FOR_USER and has_work:
                self._start_again(one)
            if not one.is_unfinished:
                continue
            if one.start_at is None and one.process.is_alive:
                self._tell_jobs_at_once(one)
            elif one.start_at is None:
                self._act_on_end(one)
            elif self.now() >= one.start_at and (self._is_ending or one.companion.kind != "at end"):
                self._start(one)
        if is_idle and not self.are_adding:
            self._let_end()

    def _let_end(self) -> None:
        """Begin those that begin at the end; when they are done, tell others that all jobs have ended,
        and give up those that take too long.
        """
        self._is_ending = True
        if any(one.companion.kind == "at end" and one.is_unfinished for one in self._all):
            return
        for one in self._all:
            if one.companion.kind != "beside" or not one.is_unfinished:
                continue
            if one.give_up_at is None:
                one.give_up_at = self.now() + one.companion.patience_s
            if self.now() > one.give_up_at:
                one.process.end()
                one.end_code = DONE
                name = one.companion.name
                text = f"{name} did not end within {one.companion.patience_s:.0f} s: killed"
                self.report("warning", text)
            elif one.process.is_alive and not one.is_told_end:
                one.is_told_end = self._tell(one, ALL_ENDED)

    @property
    def holds_run(self) -> bool:
        """Whether the run goes on for one of them though no job runs or is due."""
        return self.are_adding or any(
            one.is_unfinished and one.companion.kind in ("beside", "at end") for one in self._all
        )

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Let those that outlive the run come to their end, unless ``is_stopped``. To be called when
        the run directory is free.
        """
        left = [one for one in self._all if one.companion.kind == "after" and one.end_code != DONE]
        for one in left:
            with contextlib.suppress(OSError):  # nobody can be told any more
                if not one.process.is_alive:
                    one.process.start(str(self.jobs_at_once()))
                one.process.tell(ALL_ENDED)
        give_up_at = time.monotonic() + max((one.companion.patience_s for one in left), default=0.0)
        while any(one.process.is_alive for one in left):
            if is_stopped() or time.monotonic() > give_up_at:
                break
            time.sleep(POLL_S)
        for one in left:
            one.process.end()

    @property
    def are_adding(self) -> bool:
        """Whether one of them may add jobs."""
        return any(
            one.makes_jobs and (one.is_unfinished or self._is_redeclared(one)) for one in self._all
        )

    def close(self) -> None:
        """Kill all companions but those that outlive the run. May be called again."""
        for one in self._all:
            if one.companion.kind == "after":
                continue
            if one.companion.kind == "at end" and one.process.is_alive:
                text = f"stopped before all {one.companion.name} were made; the next run makes the rest"
                self.report("warning", text)
            one.process.end()

    def _go_on(self) -> None:
        """Jobs run again after all had ended."""
        self._is_ending = False
        for one in self._all:
            one.give_up_at = None
            if one.end_code == DONE and not one.makes_jobs:
                self._start_again(one)

    def _is_redeclared(self, one: _Running) -> bool:
        return one.declared_at not in (0, _written_at(one.companion.declaration))

    def _start_again(self, one: _Running) -> None:
        """Start one anew that had ended by itself."""
        one.end_code = None
        one.starts = 0
        one.start_at = self.now()
        if one.makes_jobs:
            self.problem = ""
        if one.companion.stopped_file is not None:
            one.companion.stopped_file.unlink(missing_ok=True)

    def _start(self, one: _Running) -> None:
        one.told_jobs_at_once = self.jobs_at_once()
        one.declared_at = _written_at(one.companion.declaration)
        one.start_at = None
        one.starts += 1
        one.is_told_end = False
        try:
            one.process.start(str(one.told_jobs_at_once))
        except OSError as error:
            self._start_later(one, f"it could not be started: {error}")

    def _tell_jobs_at_once(self, one: _Running) -> None:
        jobs_at_once = self.jobs_at_once()
        if jobs_at_once != one.told_jobs_at_once and self._tell(one, f"{jobs_at_once}\n".encode()):
            one.told_jobs_at_once = jobs_at_once

    def _tell(self, one: _Running, line: bytes) -> bool:
        with contextlib.suppress(OSError):  # it has just ended, or reads nothing at the moment
            one.process.tell(line)
            return True
        return False

    def _act_on_end(self, one: _Running) -> None:
        code = one.process.end()  # with whatever it has started
        assert code is not None
        if one.process.ran_s > STEADY_S:
            one.starts = 0
        if code in (DONE, WAITS_FOR_USER):
            one.end_code = code
            return
        prefix = f"{one.companion.name}: "
        why = one.process.why_it_ended().removeprefix(prefix)
        if code == -signal.SIGPROF:
            why = "a call in its process has not returned, and has kept all else there from running"
        if code in (CANNOT_GO_ON, -signal.SIGPROF):
            self._give_up(one, why)
        else:
            self._start_later(one, why)

    def _start_later(self, one: _Running, why: str) -> None:
        """Start it again after a while, unless that was done too often."""
        if one.starts >= MOST_STARTS:
            self._give_up(one, why)
            return
        delay_s = backoff_s(one.starts - 1) if one.starts > 1 else 0.0
        when = f" in {delay_s:.0f} s" if delay_s else ""
        text = (
            f"the process of the {one.companion.name} has ended ({why}); it is started again{when}"
        )
        self.report("warning", text)
        one.start_at = self.now() + delay_s

    def _give_up(self, one: _Running, why: str) -> None:
        one.end_code = CANNOT_GO_ON
        text = f"the {one.companion.name} has stopped: {why}"
        if one.makes_jobs:
            self.problem = text
            text += ". The jobs that it has made are trained. Correct the cause and run it again: it resumes"
        if one.companion.stopped_file is not None:
            with contextlib.suppress(OSError):  # a full disk: it is in the log
                one.companion.stopped_file.write_text(why)
        self.report("warning", text)


def _written_at(path: Path | None) -> int:
    """Return when a file was written, in nanoseconds; 0 if there is none."""
    status = None if path is None else status_of(path)
    return 0 if status is None else status.st_mtime_ns


def exit_code(
    of_jobs: int,
    *,
    source: BegunSource | None,
    states: Mapping[str, State],
    has_problem: bool,
    is_interrupted: bool,
    is_stopping: bool,
) -> int:
    """Return the exit code of a run in which something makes the jobs: failed and paused jobs are a
    part of that.

    :param of_jobs: the code that follows from the states of the jobs.
    :param has_problem: whether it has stopped with a problem; it would again.
    """
    if source is None:
        return of_jobs
    if source.is_underway:
        is_paused = any(state.name == "PAUSED" for state in states.values())
        goes_on = is_interrupted if has_problem else is_stopping or is_paused
        return 130 if goes_on else 1
    if source.makes_jobs:
        return 0 if source.has_succeeded() else 1
    return of_jobs
