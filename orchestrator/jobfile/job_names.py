"""Turns names, points of a matrix and seeds into job ids."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from orchestrator.core.decoding import Table
from orchestrator.keys.names import LONGEST, SAFE, canonical, digest, safe_name
from orchestrator.keys.problems import Problems, quoted

_SHORT_KEYS = {"learning_rate": "lr"}


def matrix_suffix(point: Table) -> str:
    """Return a readable suffix for a matrix point, ``"-lr1e-4"`` for ``{"ppo.learning_rate":
    1e-4}``; empty without a matrix.

    A suffix that would be long or unsafe is replaced by a hash of the point.
    """
    if not point:
        return ""
    text = "-".join(_key_and_value(_short(key), value) for key, value in point.items())
    if len(text) <= LONGEST + 16 and SAFE.match(text):
        return f"-{text}"
    return f"-{digest(canonical(dict(point)))}"


class JobNames:
    """Gives every job its own job_id, different even on a file system that ignores case."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._taken: dict[str, tuple[str, str, str]] = {}
        """job_id in lower case → name, point and place of the job that has it."""

    def take(self, name: str, suffix: str, point: str, seed: int, where: str) -> str:
        """Return the job_id of a job, which no other one gets from now on.

        Different jobs whose ids would be equal, or would differ in case only, are distinguished by
        a hash of name and matrix point; the first in the file keeps the plain id. Equal jobs are a
        problem.

        :param suffix: :func:`matrix_suffix` of its point.
        :param point: the point as :func:`.canonical` text.
        :param where: place of the job in the job file.
        """
        stem = safe_name(name) + suffix
        for candidate in (stem, f"{stem}-{digest(canonical([name, point]))}"):
            job_id = with_seed(candidate, seed)
            if job_id.lower() not in self._taken:
                self._taken[job_id.lower()] = name, point, where
                return job_id
            *owner, place = self._taken[job_id.lower()]
            if owner == [name, point]:
                break
        text = f"{place} has the name {quoted(name)} and the same seed, too; give each job its own"
        self._problems.add(where, text)
        return job_id


def with_seed(name: str, seed: int) -> str:
    """Return the job_id of the job with this seed, of those that have the name together."""
    return f"{name}-s{seed}"


def without_seed(job_id: str, seed: int) -> str:
    """Return the name of the jobs that differ from this one in their seed alone: name and point of
    the matrix.
    """
    return job_id.removesuffix(with_seed("", seed))


def _short(key: str) -> str:
    """Return ``n_steps`` for ``ppo.n_steps``, and ``thigh.size`` for ``model.geom.thigh.size``; ``*``
    is left out.
    """
    table, *rest = key.split(".")
    *above, last = rest or [table]
    name = ".".join(above[1:]) if table in ("model", "randomize") else ""
    name = re.sub(r"[^A-Za-z0-9._-]+", "", name).strip("-._")
    return f"{name}.{last}" if name else last


def _key_and_value(key: str, value: Any) -> str:
    if isinstance(value, str) and value.startswith("*"):
        return f"{key}{value[1:].strip()}x"
    joint = "_" if isinstance(value, (bool, str)) else ""
    return f"{_SHORT_KEYS.get(key, key)}{joint}{_value_text(value)}"


def _value_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return _shortest(value)
        case int():
            return str(value)
        case str():
            return safe_name(value)
        case list() if all(isinstance(part, (int, float, str)) for part in value):
            return "x".join(_value_text(part) for part in value) or "none"
    return digest(canonical(value))


def _shortest(number: float) -> str:
    """Return the shorter of ``0.0001`` and ``1e-4``; both are read as the same number."""
    plain = repr(number)
    scientific = f"{Decimal(plain).normalize():e}".replace("e+", "e")
    return min(plain, scientific, key=len)
