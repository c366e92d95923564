"""How jobs are named on the command line: by id, by its beginning, or by a pattern."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence

from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed


def matching_jobs(name: str, job_ids: Sequence[str]) -> list[str]:
    """The job with this id; where there is none, those whose ids begin with ``name`` or match it as
    a pattern.

    A pattern is one of a shell, such as ``cart-s1*``; upper and lower case differ.
    """
    if name in job_ids:
        return [name]
    return [
        job_id for job_id in job_ids if job_id.startswith(name) or fnmatch.fnmatchcase(job_id, name)
    ]


def resolve(
    names: Sequence[str],
    jobs: Mapping[str, str],
    *,
    fits: Callable[[str], bool] = lambda _: True,
    one: bool = False,
) -> list[str]:
    """Return the ids of the jobs that ``names`` stand for, each once.

    :param jobs: ``job_id`` → name in the job file, of all jobs.
    :param fits: of several jobs that match a pattern, those are taken for whose ids it is true; if
        it is true for none, all of them.
    :param one: whether a pattern, too, may match a single job only.
    :raises UsageError: no job fits a name, or several fit one that may have a single one.
    """
    job_ids = list(jobs)
    resolved: dict[str, None] = {}
    for name in names:
        of_name = [job_id for job_id, its_name in jobs.items() if its_name == name]
        is_name = bool(of_name) and name not in jobs
        matches = of_name if is_name else matching_jobs(name, job_ids)
        is_pattern = any(sign in name for sign in "*?[")
        if not matches:
            near = difflib.get_close_matches(name, job_ids, n=5, cutoff=0.4) or job_ids[:5]
            raise UsageError(f"{name}: no such job; jobs here: {listed(near)}")
        if len(matches) > 1 and (one or not is_pattern):
            advice = "name one of them" if one else f"'{name}*' in quotes names all of them"
            raise UsageError(f"{name}: matches several jobs: {listed(matches)}; {advice}")
        fitting = [job_id for job_id in matches if fits(job_id)]
        resolved |= dict.fromkeys(fitting or matches)
    return list(resolved)
