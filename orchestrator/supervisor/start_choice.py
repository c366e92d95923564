"""Whether the worker of a job is exec'ed, or forked from the template process, and why."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.job import Job

FEWEST_DUE = 3
"""Below that, a template process that imports the packages first saves no time: every worker may import its own at the
same time as the others."""
TOO_FEW = f"fewer than {FEWEST_DUE} jobs that can be forked are due"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChoice:
    is_forked: bool
    why: str
    """A clause."""


def is_forkable(job: Job) -> bool:
    """Whether its worker is forked, if enough such jobs are due."""
    return job.resources.start != "exec" and job.why_exec is None


def why_execed(job: Job, recorded: str | None) -> str:
    """Why its worker was exec'ed, after the event; empty where that is not known.

    :param recorded: :attr:`.ExitRecord.why_exec`.
    """
    if recorded or job.why_exec:
        return recorded or job.why_exec or ""
    return 'resources.start = "exec"' if job.resources.start == "exec" else TOO_FEW


def choose(job: Job, *, due: int, never_forks: str, has_template: bool = False) -> StartChoice:
    """How the worker of ``job`` is started.

    :param due: how many jobs that :func:`is_forkable` could be launched now if there were room, with this one.
    :param never_forks: :attr:`.Executor.never_forks`.
    :param has_template: whether there is a template process already.
    """
    if job.resources.start == "exec":
        return StartChoice(is_forked=False, why='resources.start = "exec"')
    if why_exec := job.why_exec or never_forks:
        return StartChoice(is_forked=False, why=why_exec)
    if job.resources.start == "fork":
        return StartChoice(is_forked=True, why='resources.start = "fork"')
    if due >= FEWEST_DUE:
        return StartChoice(is_forked=True, why=f"{FEWEST_DUE} or more jobs that can be forked are due")
    if has_template:
        return StartChoice(is_forked=True, why="others have been forked before")
    return StartChoice(is_forked=False, why=TOO_FEW)
