"""Turns names, points of a matrix and seeds into job ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from orchestrator.keys.names import LONGEST, SAFE, canonical, digest, safe_name

_SHORT_KEYS = {"learning_rate": "lr"}


def matrix_suffix(point: Mapping[str, Any]) -> str:
    """Readable suffix for a matrix point: ``{"ppo.learning_rate": 1e-4}`` → ``"-lr1e-4"``; empty
    without a matrix.

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

    def __init__(self) -> None:
        self._taken: dict[str, tuple[str, str, str]] = {}
        """For each job_id in lower case: name, matrix point and place of its job."""

    def job_id(self, name: str, suffix: str, point: str, seed: int, where: str) -> tuple[str, str]:
        """``(job_id, "")``, or ``("", place of the other job)`` when an equal job has its name
        already.

        Different jobs whose ids would be equal, or would differ in case only, are distinguished by
        a hash of name and matrix point; the first in the file keeps the plain id.
        """
        stem = safe_name(name) + suffix
        owner = ("", "", where)
        for candidate in (stem, f"{stem}-{digest(canonical([name, point]))}"):
            job_id = f"{candidate}-s{seed}"
            owner = self._taken.setdefault(job_id.lower(), mine := (name, point, where))
            if owner is mine:
                return job_id, ""
            if owner[:2] == mine[:2]:
                break
        return "", owner[2]


def without_seed(job_id: str, seed: int) -> str:
    """The name of the jobs that differ from this one in their seed alone: name and point of the
    matrix.
    """
    return job_id.removesuffix(f"-s{seed}")


def _short(key: str) -> str:
    """``ppo.n_steps`` → ``n_steps``; ``model.geom.thigh.size`` → ``thigh.size``; ``*`` is left
    out.
    """
    table, _, rest = key.partition(".")
    *above, last = rest.split(".") if rest else [table]
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
        case _:
            return digest(canonical(value))


def _shortest(number: float) -> str:
    """The shorter of ``0.0001`` and ``1e-4``; both are read as the same number."""
    plain = repr(number)
    if "e" not in plain and "." not in plain:
        return plain
    sign, digits, exponent = Decimal(plain).as_tuple()
    mantissa = "".join(map(str, digits)).rstrip("0") or "0"
    assert isinstance(exponent, int)
    power = exponent + len(digits) - 1
    scientific = f"{'-' * sign}{mantissa[0]}{'.' * (len(mantissa) > 1)}{mantissa[1:]}e{power}"
    return min(plain, scientific, key=len)
