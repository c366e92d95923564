"""Whether the worker of a job is exec'ed, or forked from the template process, and why."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.job import Job

FEWEST_DUE = 3
"""Below that, a template process that imports the packages first saves no time: every worker may
import its own at the same time as the others."""
TOO_FEW = f"fewer than {FEWEST_DUE} jobs that can be forked are due"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartChoice:
    is_forked: bool
    why: str
    """A clause."""


def why_never_forked(job: Job, never_forks: str = "") -> str:
    """Why its worker is exec'ed, however many jobs are due; empty where it can be forked.

    :param never_forks: :attr:`.OpenedExecutor.never_forks`.
    """
    if job.resources.start == "exec":
        return 'resources.start = "exec"'
    return job.why_exec or never_forks


def is_forkable(job: Job) -> bool:
    """Whether its worker is forked if enough such jobs are due, by an executor that forks."""
    return not why_never_forked(job)


def choose(job: Job, *, due: int, never_forks: str, has_forked: bool = False) -> StartChoice:
    """How the worker of ``job`` is started.

    :param due: how many jobs that :func:`is_forkable` wait to be launched, with this one; those
        whose back-off is not over are among them, and those that wait for other jobs are not.
    :param never_forks: :attr:`.OpenedExecutor.never_forks`.
    :param has_forked: whether the executor has taken a job to fork, so that it has a template
        process.
    """
    if why := why_never_forked(job, never_forks):
        return StartChoice(is_forked=False, why=why)
    if job.resources.start == "fork":
        return StartChoice(is_forked=True, why='resources.start = "fork"')
    if due >= FEWEST_DUE:
        return StartChoice(
            is_forked=True, why=f"{FEWEST_DUE} or more jobs that can be forked are due"
        )
    if has_forked:
        return StartChoice(
            is_forked=True, why="there is a template process, of jobs launched before"
        )
    return StartChoice(is_forked=False, why=TOO_FEW)
