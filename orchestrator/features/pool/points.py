"""What jobs of a pool are reported by: the settings that they were submitted with, and what the
program says of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from orchestrator.core.errors import UsageError
from orchestrator.core.job import META
from orchestrator.core.text import plain
from orchestrator.jobfile.validation import as_plain
from orchestrator.keys.names import is_showable

Scalar: TypeAlias = str | int | float | bool | None

MOST_KEYS = 100
LONGEST_NAME = 64
LONGEST_TEXT = 1000
NO_PARAMETERS = ("name", "init", "seeds")
"""Settings that are no parameters of a training."""


def point_of(settings: Mapping[str, Any], meta: Mapping[str, Scalar]) -> dict[str, Any]:
    """:attr:`Job.point`: ``settings`` of the submission, by dotted keys, and ``meta``."""
    given = {key: value for key, value in settings.items() if key not in NO_PARAMETERS}
    point = dict(_leaves(as_plain(given)))
    return point | {f"{META}{name}": value for name, value in meta.items()}


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def checked_meta(meta: object) -> dict[str, Scalar]:
    """``meta`` with numbers of NumPy as those of Python.

    :raises UsageError: it is no table of texts, finite numbers, booleans and None.
    """
    where = "TrainingPool.submit: meta"
    if not isinstance(meta, Mapping):
        expected = 'expected a dictionary, such as {"generation": 3}'
        raise UsageError(f"{where} is of type {type(meta).__name__}; {expected}")
    if len(meta) > MOST_KEYS:
        raise UsageError(f"{where} has {len(meta):,} keys; expected at most {MOST_KEYS}")
    values: dict[str, Scalar] = as_plain(meta)
    for name, value in values.items():
        if not (isinstance(name, str) and name.strip() and is_showable(name)):
            raise UsageError(f"{where}: the key {plain(repr(name))}: expected a name")
        if len(name) > LONGEST_NAME:
            most = f"expected at most {LONGEST_NAME}"
            raise UsageError(f"{where}: the key {name[:20]}… has {len(name):,} characters; {most}")
        if fault := _fault(value):
            raise UsageError(f"{where}: {name}: {fault}")
    return values


def _fault(value: object) -> str:
    """Why ``value`` is no scalar; empty where it is one."""
    match value:
        case bool() | None:
            return ""
        case int() if abs(value) > _LARGEST_INT:
            return f"expected a whole number of at most 64 bits; this one has {value.bit_length()}"
        case float() if not math.isfinite(value):
            return f"expected a finite number; this is {value}"
        case str() if not is_showable(value):
            return "the text has a line break, a control character, or what UTF-8 cannot write"
        case str() if len(value) > LONGEST_TEXT:
            return f"the text has {len(value):,} characters; expected at most {LONGEST_TEXT:,}"
        case str() | int() | float():
            return ""
    what = "expected a text, a number, True, False or None"
    return f"{what}; this is of type {type(value).__name__}"


_LARGEST_INT = 2**63 - 1
