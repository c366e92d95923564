"""``resume --all``: what a reboot, or the end of a supervisor by any other force, has interrupted goes
on in the background.

An experiment that its user has stopped, or that has ended with an error, is left as it is.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.child_process import package_path, spawn
from orchestrator.core.text import shortened
from orchestrator.experiment import resume_advice, run_directory, run_end, run_index
from orchestrator.experiment.run_index import FINISHED, ListedRun
from orchestrator.experiment.start_conditions import StartConditions

Fate: TypeAlias = Literal["resumed", "left", "failed"]
"""``left``: there is nothing to resume, or the user decides that; ``failed``: it was interrupted, and
could not be resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What has become of one experiment."""

    run_dir: str
    name: str
    fate: Fate
    message: str
    """What goes on, or why it does not, as a clause."""
    pid: int | None = None
    """Of the supervisor; None also where it has ended already."""


def resume_all() -> Iterator[Resumption]:
    """Resume what was interrupted of this user on this machine, one experiment after the other, in
    the order in which they were started. Experiments that have finished are passed over.
    """
    gone = run_index.missing()
    runs = sorted(run_index.listed_runs(), key=lambda run: run.entry.noted_at)
    for entry in gone:
        yield Resumption(
            run_dir=entry.run_dir,
            name=entry.name,
            fate="left",
            message="its run directory is gone: it was removed, or its disk is not mounted",
        )
    for run in runs:
        if run.state != FINISHED or run.left is not None:
            yield _resumption(run)


def _resumption(run: ListedRun) -> Resumption:
    paths = RunPaths(Path(run.entry.run_dir))
    conditions = StartConditions.recorded(paths)
    fate, message = _decide(run, paths, conditions)
    if fate == "resumed":
        fate, message = _decide_by_files(paths)
    if fate == "resumed":
        return _start(run, paths, conditions)
    return Resumption(run_dir=run.entry.run_dir, name=run.entry.name, fate=fate, message=message)


def _decide(run: ListedRun, paths: RunPaths, conditions: StartConditions) -> tuple[Fate, str]:
    """What is to become of an experiment, and why it is not resumed.

    :param conditions: of its last run.
    """
    end = run_end.read(paths)  # None where it was killed
    if run.state == "running":
        return "left", f"runs already, supervised by {run.holder}"
    if run.state == "unreadable":
        return "failed", f"cannot be read: {run.problem}"
    if run.state == "paused":
        return (
            "left",
            f"its jobs are paused; `resume {shlex.quote(run.entry.run_dir)}` queues them again",
        )
    if conditions.is_over:
        again = resume_advice.resuming_clause(paths)
        return "left", f"the time is over by which it was to end (--until); {again}"
    if end is None or end.is_by_shutdown:
        if conditions.has_lost_its_cpus:
            again = resume_advice.resuming_clause(paths)
            why = "none of the CPUs is usable to which it was confined"
            return "left", f"{why}; {again} on others"
        return "resumed", ""
    again = resume_advice.resuming_clause(paths)
    if end.exit_code == 130:
        how = f"by {end.signal}" if end.signal else "by its user"
        return "left", f"was stopped {how}; {again}"
    if end.message:
        return "left", f"has ended with an error ({end.message}); {again}"
    return "left", f"has ended with exit code {end.exit_code}; {again}"


def _decide_by_files(paths: RunPaths) -> tuple[Fate, str]:
    """The same of an experiment that was interrupted, by what its run directory has to go on with."""
    if not paths.ledger.exists():
        what = "was interrupted while its robots were examined, before its jobs were entered"
        return "failed", f"{what}; run its job file again"
    try:
        if not resume_advice.has_declaration(paths):
            return "left", resume_advice.resuming_clause(paths)
    except OrchestratorError as error:
        return "failed", f"cannot be read: {error}"
    return "resumed", ""


def _start(run: ListedRun, paths: RunPaths, conditions: StartConditions) -> Resumption:
    """Start its supervisor, and wait until the first jobs run."""
    begun = time.time()
    try:
        process = spawn(
            conditions.command(paths.root),
            environment={**os.environ, **package_path()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cpus=conditions.usable_cpus(),
        )
    except OSError as error:  # such as too many processes; the others are tried
        return Resumption(
            run_dir=run.entry.run_dir,
            name=run.entry.name,
            fate="failed",
            message=f"could not be resumed: no process can be started ({error})",
        )
    _, err = process.communicate()
    holder = run_directory.holder(paths)
    end = run_end.read(paths)
    fate: Fate = "resumed"
    pid = None
    if process.returncode == 0 and holder is not None:
        pid = holder.pid
        message = f"resumed, supervised by process {pid}"
    elif end is not None and end.ended_at > begun and not end.message:
        message = f"resumed, and has ended already with exit code {process.returncode}"
    elif holder is not None:
        fate = "left"
        message = f"runs already, supervised by {holder}"
    else:
        fate = "failed"
        printed = shortened("; ".join(err.decode(errors="replace").splitlines()))
        message = f"could not be resumed: {printed.removeprefix('error: ')}"
    return Resumption(
        run_dir=run.entry.run_dir, name=run.entry.name, fate=fate, message=message, pid=pid
    )


def exit_code(resumptions: Sequence[Resumption]) -> int:
    """0: all that was interrupted goes on; 1: something could not be resumed."""
    return 1 if any(one.fate == "failed" for one in resumptions) else 0
