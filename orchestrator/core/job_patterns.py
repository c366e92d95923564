"""Patterns that name jobs on the command line."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence


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


def is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")
