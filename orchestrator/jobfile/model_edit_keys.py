"""The tables ``model``, ``randomize`` and ``evaluate``: changes to a robot, with dotted keys
(``"geom.thigh.size"``), as nested tables, or mixed.

The worker checks the elements and attributes themselves when it examines the robot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.core.decoding import Table
from orchestrator.core.numbers.distributions import (
    DISTURBANCES,
    check_disturbance,
    disturbance,
    parse_distribution,
)
from orchestrator.core.numbers.evaluation_grid import FACTOR, parse_axis
from orchestrator.core.numbers.terrain import TERRAIN, parse_terrain
from orchestrator.core.text import finite_number
from orchestrator.core.worker_spec import EDITABLE_KINDS, SINGLE_KINDS
from orchestrator.keys.problems import suggestion
from orchestrator.keys.toml_text import shown


def nested(check: Callable[[str, Any], None], table: dict[str, Any]) -> dict[str, Any]:
    """Return a table with dotted keys as nested tables, one level per part of a key, so that layers
    merge key by key.

    :param check: raises ValueError for a dotted key or value that cannot be.
    :raises ValueError: what ``check`` raises, with the key; or a key is written twice.
    """
    tree: dict[str, Any] = {}
    for key, value in _leaves(table):
        try:
            check(key, value)
        except ValueError as error:
            raise ValueError(f'"{key}": {error}') from None
        *tables, last = key.split(".")
        holder: Any = tree
        for name in tables:
            holder = holder.setdefault(name, {}) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or last in holder:
            raise ValueError(f'"{key}" is written twice, or is part of another key')
        holder[last] = value
    return tree


def flat(tree: Table) -> dict[str, Any]:
    """Return dotted keys and their values: the inverse of :func:`nested`."""
    return dict(_leaves(tree))


def _leaves(tree: Table, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values. :param above: what the keys begin with."""
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
        near = suggestion(key, others) or suggestion(kind, EDITABLE_KINDS)
        meant = f"; did you mean {near}?" if near else ";"
        known = ", ".join((*EDITABLE_KINDS, *others))
        raise ValueError(f"unknown kind of element{meant} expected one of {known}")
    if "" in rest or len(rest) < (1 if kind in SINGLE_KINDS else 2):
        example = f"{kind}.timestep" if kind in SINGLE_KINDS else f"{kind}.NAME.ATTRIBUTE"
        raise ValueError(f"names no attribute; expected for example {example}")


def check_change(key: str, value: Any) -> None:
    _check_key(key)
    for part in value if isinstance(value, list) and value else [value]:
        if isinstance(part, str) and part.startswith("*"):
            factor = FACTOR.match(part)
            if factor is None:
                raise ValueError(f'expected a factor such as "*1.2", found {shown(part)}')
            finite_number(factor[1])
        if part is None or isinstance(part, list | dict):
            raise ValueError(f"expected a number, text or a list of these, found {shown(value)}")


def check_distribution(key: str, value: Any) -> None:
    if key == TERRAIN:
        parse_terrain(value)
        return
    if disturbance(key) is None:
        _check_key(key, *DISTURBANCES, TERRAIN)
    distribution = parse_distribution(str(value))
    if disturbance(key) is not None:
        check_disturbance(key, distribution)


def check_axis(key: str, value: Any) -> None:
    if key == TERRAIN:
        raise ValueError("cannot vary on a grid, whose points share one terrain")
    if disturbance(key) is None:
        _check_key(key, *DISTURBANCES)
    parse_axis(key, value)
