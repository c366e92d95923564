"""The supervisor of a pool, as the program that has the pool sees it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator.client.start import SupervisorProcess
from orchestrator.core.errors import OrchestratorError, RunDirError, SupervisorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import plain
from orchestrator.experiment import run_directory, run_end
from orchestrator.experiment.begun_source import begun_source
from orchestrator.machine.slots import MaxParallel
from orchestrator.server.requests import Request, RequestFolder
from orchestrator.server.settings import RunSettings

LOOK_EVERY_S = 0.05
NOTICED_S = 2.0
"""Within this time a supervisor has recorded that it stops, after its program was killed."""
RESUMED_BY = (
    "a TrainingPool with {run_dir} resumes it when the same robots are submitted to it again"
)


class PoolSupervisor:
    """Starts the supervisor of a pool: it goes on without jobs until it is released.

    :raises OrchestratorError: the run directory cannot be used.
    """

    def __init__(self, run_dir: Path, max_parallel: MaxParallel) -> None:
        self.paths = RunPaths(run_dir)
        self._process = SupervisorProcess(run_dir)
        try:
            _wait_for_earlier(self.paths)
            if origin := _origin(self.paths):
                what = f"was made by {origin}, and a pool enters jobs of its own"
                advice = run_directory.choose_another().capitalize()
                raise RunDirError(f"{run_dir}: {what}. {advice}")
            settings = RunSettings(
                client_pid=os.getpid(),
                name=plain(run_dir.name),
                holds_open=True,
                awaits_jobs=False,
                max_parallel=max_parallel,
                executor="local",
                resumed_by=RESUMED_BY,
            )
            self.holder = self._process.begin(settings)
            """Its key in the lock of the run directory."""
        except BaseException:
            self._process.close()
            raise

    @property
    def has_ended(self) -> bool:
        return self._process.has_ended

    def end(self, *, stops: Callable[[], bool]) -> None:
        """Wait for its end, which comes when no job is left, or soon after ``stops``. May be called
        again.
        """
        is_told = False
        if not stops():
            self._leave(Request(verb="release", args={"drop": True}))
        while not self.has_ended:
            if stops() and not is_told:
                is_told = True
                self._leave(Request(verb="stop"))
            time.sleep(LOOK_EVERY_S)
        self._process.wait()
        self._process.close()

    def hurry(self) -> None:
        """Make it kill its workers now, if it stops already."""
        self._leave(Request(verb="stop", args={"now": True}))

    def why_it_ended(self) -> OrchestratorError:
        """Return the error for a supervisor that has ended without being asked to."""
        end = run_end.read(self.paths)
        where = f"run_dir={str(self.paths.root)!r}"
        advice = f"A new pool with {where} resumes it when the same robots are submitted again."
        if end is not None and end.holder == self.holder and end.message:
            return SupervisorError(end.message)
        what = "was killed" if end is None else "was stopped"
        return SupervisorError(f"the supervisor of the pool {what}. {advice}")

    def _leave(self, request: Request) -> None:
        if self.has_ended:
            return
        own = Request(verb=request.verb, args=request.args, supervisor=self.holder)
        with contextlib.suppress(OSError):  # its lifeline ends it, too
            RequestFolder(self.paths.requests).leave(own)


def _origin(paths: RunPaths) -> str:
    """Return what else makes the jobs of this run directory; empty if nothing does."""
    if paths.experiment.exists():
        return "`run` of a job file"
    if not paths.ledger.exists():
        return ""
    with run_directory.reading_ledger(paths) as ledger:
        source = begun_source(paths, ledger)
    return "" if source is None else f"a {source.noun}"


def _wait_for_earlier(paths: RunPaths) -> None:
    """Wait for the supervisor of an earlier pool here while it stops, as one does whose program was
    killed.
    """
    noticed = time.monotonic() + NOTICED_S
    is_told = False
    while (earlier := run_directory.holder(paths)) is not None and not _origin(paths):
        if _is_stopping(paths):
            if not is_told and sys.stderr is not None:
                advice = f"`stop --now {paths.root}` kills its trainings"
                text = f"{paths.root}: waiting for the earlier pool ({earlier}) to end; {advice}"
                print(f"warning: {plain(text)}", file=sys.stderr)
            is_told = True
        elif time.monotonic() > noticed:
            return
        time.sleep(LOOK_EVERY_S)


def _is_stopping(paths: RunPaths) -> bool:
    if not paths.ledger.exists():
        return False
    sql = (
        "SELECT kind FROM events WHERE kind IN ('stopping', 'ended', 'launched', 'answer')"
        " ORDER BY id DESC LIMIT 1"
    )
    with run_directory.reading_ledger(paths) as ledger:
        last = ledger.select(sql)
    return bool(last) and last[0]["kind"] == "stopping"
