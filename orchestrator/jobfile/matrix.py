"""The keys that vary over the jobs of an entry: those of its matrix, or those that a job source
varies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.decoding import Table
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
    "evaluate": "cannot vary: the final evaluation changes no training; set it on the job",
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


def matrix_choices(matrix: Table, where: str, problems: Problems) -> dict[str, list[Choice]]:
    """Return the valid values of every key of a matrix; an invalid key is left out."""
    too_many = check_family(Layer(matrix, f"{where}.matrix.{{}}".format), problems)
    found = {
        key: _choices_of(key, values, f"{where}.matrix.{place(key)}", problems)
        for key, values in matrix.items()
        if key not in too_many
    }
    return {key: choices for key, choices in found.items() if choices}


def _choices_of(key: str, values: Any, where: str, problems: Problems) -> list[Choice]:
    fault = matrix_fault(key)
    if not fault and not (isinstance(values, list) and values):
        fault = "expected a list of values with at least one, for example [1e-4, 3e-4]"
    if fault:
        problems.add(where, fault)
        return []
    if not is_key(key):
        check_one(key, values[0], where, problems)
        return []
    choices: dict[str, Choice] = {}
    for number, value in enumerate(values):
        there = f"{where}[{number}]"
        tree = check_one(key, value, there, problems)
        if tree is None:
            continue
        checked = _value_at(tree, key)
        identity = canonical(checked)
        if identity in choices:
            problems.add(there, "the same value is earlier in the list")
        choices[identity] = Choice(key, checked, tree, there)
    return list(choices.values())


def _value_at(tree: Tree, dotted: str) -> Any:
    """Return the value of a dotted key in nested tables that have it."""
    value: Any = tree
    for part in dotted.split("."):
        value = value[part]
    return value


def is_key(dotted: str) -> bool:
    """Return whether a job has a single key of this name; those of the free tables are known only to
    who reads them.
    """
    top, *rest = dotted.split(".")
    if top in FREE_TABLES:
        return bool(rest)
    if top in TABLES:
        return len(rest) == 1 and rest[0] in TABLES[top].model_fields
    return not rest and top in Settings.model_fields


def matrix_fault(key: str) -> str:
    """Return why this key cannot vary; empty if it can, or if it is unknown."""
    top, *rest = key.split(".")
    if top in _NOT_IN_MATRIX:
        return _NOT_IN_MATRIX[top]
    is_unknown = top not in Settings.model_fields or (top in TABLES and len(rest) == 1)
    if is_unknown or is_key(key):
        return ""
    return 'expected a single key, dotted and in quotes, such as "ppo.gamma"'


def point_layer(point: Sequence[Choice]) -> Layer:
    """Return the settings of a point of a matrix."""
    values: Tree = {}
    for choice in point:
        values = merge(values, choice.tree)

    def where(key: str) -> str:
        of_key = (one.where for one in point if f"{one.key}.".startswith(f"{key}."))
        return next(of_key, key)

    return Layer(values, where)


def merge(below: Table, above: Table) -> Tree:
    """Return ``below`` overridden by ``above``, tables key by key."""
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        result[key] = value
        if isinstance(under, dict) and isinstance(value, dict):
            result[key] = merge(under, value)
    return result
