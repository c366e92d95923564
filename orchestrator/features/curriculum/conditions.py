"""Conditions by which a training advances from stage to stage, such as ``"ep_rew_mean > 800"``."""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OF_THE_MACHINE = ("time/fps", "time/time_elapsed")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([\w/ -]*[\w/])\s*(>=|<=|>|<)\s*([^<>=]+?)\s*\Z")


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be so at the end of an iteration for the next stage to begin."""

    column: str
    """Of ``progress.csv``."""
    comparison: str
    threshold: float

    def holds(self, row: Mapping[str, Any]) -> bool:
        """:param row: of ``progress.csv``; an empty cell never fulfils a condition."""
        value = row.get(self.column)
        return value is not None and _OPERATORS[self.comparison](float(value), self.threshold)

    def __str__(self) -> str:
        return f"{self.column} {self.comparison} {self.threshold:g}"


def parse_condition(text: str) -> Condition:
    """The condition ``text``, whose column is as it was written.

    :raises ValueError: it is none.
    """
    match = _CONDITION.match(text)
    expected = 'expected a column of progress.csv and a number, such as "ep_rew_mean > 800"'
    try:
        threshold = math.nan if match is None else float(match[3])
    except ValueError:
        threshold = math.nan
    if match is None or not math.isfinite(threshold):
        raise ValueError(
            f'"{text}" is no condition: {expected}, with one of {", ".join(_OPERATORS)} between them'
        )
    return Condition(match[1].strip(), match[2], threshold)


def resolve_column(column: str, columns: Sequence[str]) -> str:
    """The one of ``columns`` that is meant: ``ep_rew_mean`` is ``rollout/ep_rew_mean``.

    :raises ValueError: none is, or it depends on the speed of the machine.
    """
    by_name = {name.rpartition("/")[2]: name for name in columns} | {name: name for name in columns}
    if column in by_name:
        return by_name[column]
    if column in _OF_THE_MACHINE or f"time/{column}" in _OF_THE_MACHINE:
        raise ValueError(
            f'"{column}" depends on the speed of the machine, so the same job would not give the same policy'
        )
    near = difflib.get_close_matches(column, by_name, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    raise ValueError(f'progress.csv has no column "{column}"; {hint}It has {", ".join(columns)}')
