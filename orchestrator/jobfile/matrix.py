"""The keys that vary over the jobs of an entry: those of its matrix, or those that a job source
varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.jobfile.joint_rules import check_family
from orchestrator.jobfile.toml_models import FREE_TABLES, TABLES, Settings
from orchestrator.jobfile.validation import Layer, check_one
from orchestrator.keys.names import canonical
from orchestrator.keys.problems import Problems, place

_NOT_IN_MATRIX = {
    "name": "cannot vary: job ids are made of the job's name and the matrix; leave it out",
    "xml": "cannot vary; write several [[jobs]] tables, or a glob as xml",
    "seeds": "seeds make several jobs without a matrix; set seeds = [0, 1, 2] on the job",
    "after": "cannot vary; set it on the job",
    "matrix": "a matrix cannot hold a matrix",
}

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of one key of a matrix."""

    key: str
    value: Any
    """The validated value, in JSON types."""
    tree: Tree
    """The key and its value as nested tables."""
    where: str


def matrix_choices(
    matrix: Mapping[str, Any], where: str, problems: Problems
) -> dict[str, list[Choice]]:
    """The valid values of every key of a matrix; an invalid key is left out."""
    others = check_family(Layer(matrix, f"{where}.matrix.{{}}".format), problems)
    found: dict[str, list[Choice]] = {}
    for key, values in matrix.items():
        choices = [] if key in others else _choices_of(key, values, where, problems)
        if choices:
            found[key] = choices
    return found


def _choices_of(key: str, values: Any, where: str, problems: Problems) -> list[Choice]:
    there = f"{where}.matrix.{place(key)}"
    fault = matrix_fault(key, values)
    if fault:
        problems.add(there, fault)
        return []
    if not is_key(key):
        check_one(key, values[0], there, problems)
        return []
    choices: list[Choice] = []
    seen: set[str] = set()
    # Message → its first place: a fault of the key is the same for all values.
    faults: dict[str, str] = {}
    for number, value in enumerate(values):
        own = Problems()
        tree = check_one(key, value, f"{there}[{number}]", own)
        if tree is None:
            for problem in own.in_order():
                faults.setdefault(problem.message, problem.where)
            continue
        checked = _value_at(tree, key)
        if canonical(checked) in seen:
            problems.add(
                f"{there}[{number}]",
                "the same value is earlier in the list; each value makes its own jobs",
            )
            continue
        seen.add(canonical(checked))
        choices.append(Choice(key, checked, tree, f"{there}[{number}]"))
    for message, first in faults.items():
        problems.add(first, message)
    return choices


def _value_at(tree: Tree, dotted: str) -> Any:
    """The value of a dotted key in nested tables that have it."""
    value: Any = tree
    for part in dotted.split("."):
        value = value[part]
    return value


def is_key(dotted: str) -> bool:
    """Whether a job has a single key of this name; those of the free tables are known only to who
    reads them.
    """
    top, *rest = dotted.split(".")
    if top in FREE_TABLES:
        return bool(rest)
    if top in TABLES:
        return len(rest) == 1 and rest[0] in TABLES[top].model_fields
    return not rest and top in Settings.model_fields


def matrix_fault(key: str, values: Any) -> str:
    """Why a matrix cannot hold this key; empty when it can, or when the key is unknown."""
    top, *rest = key.split(".")
    keys_below = 1 if top in TABLES else 0
    if key in _NOT_IN_MATRIX:
        return _NOT_IN_MATRIX[key]
    if top == "evaluate":
        return (
            "cannot vary: the grid of the final evaluation changes no training; set it on the job"
        )
    if key in (*TABLES, *FREE_TABLES):
        return f'a matrix takes single keys of a table, dotted and in quotes: "{_key_in(key, values)}" = […]'
    if top in Settings.model_fields and top not in FREE_TABLES and len(rest) > keys_below:
        return f"there are no keys below {'.'.join([top, *rest[:keys_below]])}"
    if not isinstance(values, list) or not values:
        return "expected a list of values with at least one, for example [1e-4, 3e-4]"
    return ""


def _key_in(table: str, values: Any) -> str:
    """The dotted key that was probably meant where a matrix has a whole table."""
    if not isinstance(values, dict) or not values:
        known = list(TABLES[table].model_fields) if table in TABLES else []
        return f"{table}.{known[0] if known else 'key'}"
    name, inner = next(iter(values.items()))
    dotted = f"{table}.{name}"
    while table in ("model", "randomize") and isinstance(inner, dict) and inner:
        name, inner = next(iter(inner.items()))
        dotted += f".{name}"
    return dotted


def point_layer(point: Sequence[Choice]) -> Layer:
    """The settings of a point of a matrix."""
    values: Tree = {}
    for choice in point:
        values = merge(values, choice.tree)
    places = {choice.key: choice.where for choice in point}
    return Layer(values, lambda key: places.get(key, key))


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """``below`` overridden by ``above``, tables key by key."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(under, dict) and isinstance(value, dict):
            result[key] = merge(under, value)
        else:
            result[key] = value
    return result
