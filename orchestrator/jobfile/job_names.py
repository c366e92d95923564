"""Turns names, points of a matrix and seeds into job ids."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from orchestrator.core.decoding import Table
from orchestrator.keys.names import LONGEST, SAFE, canonical, digest, safe_name

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
