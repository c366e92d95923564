"""The tables ``model``, ``randomize`` and ``evaluate``: changes to a robot, with dotted keys
(``"geom.thigh.size"``), as nested tables, or mixed.

The worker checks the elements and attributes themselves when it examines the robot.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.core.numbers.distributions import (
    DISTURBANCES,
    check_disturbance,
    disturbance,
    parse_distribution,
)
from orchestrator.core.numbers.evaluation_grid import FACTOR, parse_axis
from orchestrator.core.numbers.terrain import TERRAIN, parse_terrain
from orchestrator.core.worker_spec import EDITABLE_KINDS, SINGLE_KINDS
from orchestrator.keys.toml_text import toml_of
from orchestrator.keys.value_types import ExpectedError


def nested_edits(value: Any) -> dict[str, Any]:
    """The changes of ``model`` as nested tables, one level per part of a key, so that layers merge
    key by key.

    :raises ValueError: for a key or value that cannot be a change.
    """
    return _nested_tables(
        value, _check_change, 'changes to the robot, such as { "geom.thigh.size" = "*1.2" }'
    )


def nested_distributions(value: Any) -> dict[str, Any]:
    """The distributions of ``randomize`` in the same way.

    :raises ValueError: for a key that cannot be drawn, or a value that is no distribution.
    """
    return _nested_tables(
        value,
        _check_distribution,
        'distributions, such as { "body.trunk.mass" = "scale(0.8, 1.2)" }',
    )


def nested_grid(value: Any) -> dict[str, Any]:
    """The lists of values of ``evaluate`` in the same way.

    :raises ValueError: for a key that cannot vary, or what is no list of values.
    """
    return _nested_tables(
        value,
        _check_axis,
        'lists of values, such as { "body.trunk.mass" = ["*0.7", "*1", "*1.3"] }',
    )


def _nested_tables(value: Any, check: Callable[[str, Any], None], expected: str) -> dict[str, Any]:
    """A table with dotted keys, nested tables, or both, as nested tables alone.

    :param check: raises a ValueError for a dotted key and value that cannot be.
    :param expected: what the table holds, for messages.
    """
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ExpectedError(f"expected a table of {expected}")
    tree: dict[str, Any] = {}
    for key, changed in _leaves(value):
        check(key, changed)
        *tables, last = key.split(".")
        holder: Any = tree
        for table in tables:
            holder = holder.setdefault(table, {}) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or last in holder:
            raise ValueError(f'"{key}" is written twice, or is part of another key')
        holder[last] = changed
    return tree


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`nested_edits`: dotted keys and their values."""
    return dict(_leaves(tree))


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values. :param above: what the keys begin with."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def _check_key(key: str, *others: str) -> None:
    """Check that a dotted key names an attribute of an element of a robot.

    :param others: keys that can be in its place, for the message.
    """
    kind, *rest = key.split(".")
    if kind not in EDITABLE_KINDS:
        or_key = f", or the key {', '.join(others)}" if others else ""
        near = [
            *difflib.get_close_matches(key, others, n=1),
            *difflib.get_close_matches(kind, EDITABLE_KINDS, n=1),
        ]
        meant = f"; did you mean {near[0]}?" if near else ";"
        raise ValueError(
            f'"{key}": unknown kind of element{meant} expected one of {", ".join(EDITABLE_KINDS)}{or_key}'
        )
    fewest = 2
    example = f"{kind}.NAME.ATTRIBUTE, with * for any name"
    if kind in SINGLE_KINDS:
        fewest = 1
        example = f"{kind}.timestep"
    if "" in rest or len(rest) < fewest:
        raise ValueError(f'"{key}" names no attribute; expected for example {example}')


def _check_change(key: str, value: Any) -> None:
    _check_key(key)
    for part in value if isinstance(value, list) and value else [value]:
        if isinstance(part, str) and part.startswith("*"):
            if not FACTOR.match(part):
                raise ValueError(f'"{key}": expected a factor such as "*1.2", found "{part}"')
        elif isinstance(part, float) and not math.isfinite(part):
            raise ValueError(f'"{key}": expected a finite number, found {part}')
        elif not isinstance(part, (str, int, float)) or (
            isinstance(part, int) and abs(part) >= 2**63
        ):
            expected = "expected a number, true or false, text, or a list of these"
            raise ValueError(f'"{key}": {expected}, found {toml_of(part)}; "*1.2" multiplies')


def _check_distribution(key: str, value: Any) -> None:
    if key != TERRAIN and disturbance(key) is None:
        _check_key(key, *DISTURBANCES, TERRAIN)
    if not isinstance(value, str):
        raise ExpectedError(f'"{key}": expected a distribution such as "uniform(0.4, 1.2)"')
    try:
        if key == TERRAIN:
            parse_terrain(value)
            return
        distribution = parse_distribution(value)
        if disturbance(key) is not None:
            check_disturbance(key, distribution)
    except ValueError as error:
        raise ValueError(f'"{key}": {error}') from None


def _check_axis(key: str, value: Any) -> None:
    if key == TERRAIN:
        raise ValueError(
            f'"{key}" cannot vary on a grid, whose points share one terrain; set it in randomize'
        )
    if disturbance(key) is None:
        _check_key(key, *DISTURBANCES)
    try:
        parse_axis(key, value)
    except ValueError as error:
        raise ValueError(f'"{key}": {error}') from None
