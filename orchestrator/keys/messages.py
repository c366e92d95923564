"""What pydantic's errors mean to whoever has written a job file.

Tables are found by walking the models: nothing here knows a table but ``[defaults]`` and
``[[jobs]]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic_core import ErrorDetails

from orchestrator.core.text import alternatives
from orchestrator.keys.problems import quoted, suggestion
from orchestrator.keys.toml_text import shown
from orchestrator.keys.value_types import AnyKeys, ExpectedError, TomlTable

NO_SUCH_KEY = "unknown key; known keys: "
"""How the message for a key begins that resembles none."""
Location = tuple[int | str, ...]
"""Path of a value in the file: ``("jobs", 3, "ppo", "n_steps")``."""
Table = type[TomlTable]


@dataclass(frozen=True, slots=True)
class Layout:
    """The tables of a job file."""

    top: Table
    settings: Table
    """``[defaults]``."""
    job: Table
    """``[[jobs]]``: the settings and more."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """Tables of a job with fixed keys."""
        return _tables_in(self.settings)

    @property
    def free_tables(self) -> tuple[str, ...]:
        """Tables of a job with any keys."""
        fields = self.settings.model_fields
        return tuple(name for name, info in fields.items() if AnyKeys() in info.metadata)

    def table_at(self, location: Location) -> Table:
        """Return the innermost table that ``location`` is in, or is."""
        table = self.top
        names = iter([part for part in location if isinstance(part, str)])
        for name in names:
            inner = _tables_in(table).get(name)
            if inner is None:
                break
            if _has_users_keys(table.model_fields[name].annotation):
                next(names, None)  # a key that the user has chosen
            table = inner
        return table

    def owners_of(self, key: str, table: Table) -> list[str]:
        """Return the other tables that have a key which ``table`` lacks."""
        if key in self.settings.model_fields:
            return ["[defaults]", "[[jobs]]"]
        if key in self.job.model_fields:
            return ["[[jobs]]"]
        tables = {**self.tables, **(_tables_in(self.top) if table is self.top else {})}
        owners = [name for name, one in tables.items() if key in one.model_fields]
        return ["the file", *owners] if key in self.top.model_fields else owners


@functools.cache
def _tables_in(table: Table) -> Mapping[str, Table]:
    """Return the tables that are values of keys of ``table``, by key."""
    found = {name: _table_in(info.annotation) for name, info in table.model_fields.items()}
    return {name: inner for name, inner in found.items() if inner is not None}


def _table_in(annotation: Any) -> Table | None:
    """Return the table that a value of this type is, or that it holds: in a list, or under any keys."""
    if parts := get_args(annotation):
        return next((table for part in parts if (table := _table_in(part)) is not None), None)
    is_table = isinstance(annotation, type) and issubclass(annotation, TomlTable)
    return annotation if is_table else None


def _has_users_keys(annotation: Any) -> bool:
    """Return whether a value of this type has tables under keys that the user chooses."""
    is_dict = get_origin(annotation) is dict
    return is_dict or any(_has_users_keys(part) for part in get_args(annotation))


def message_for(layout: Layout, location: Location, details: ErrorDetails) -> str:
    """Return the message for one of pydantic's errors."""
    kind = details["type"]
    found = f"found {shown(details['input'])}"
    if location == ("jobs",):
        return "expected [[jobs]] tables, with double brackets, each with at least name and xml"
    if kind == "extra_forbidden":
        return _unknown_key(layout, layout.table_at(location[:-1]), str(location[-1]))
    if kind == "missing":
        return "missing"
    if kind in ("model_type", "dict_type"):
        return f"expected a table, {found}"
    if kind == "value_error":
        error = details["ctx"]["error"]
        return f"{error}, {found}" if isinstance(error, ExpectedError) else str(error)
    text = f"{details['msg'].replace('Input should', 'must')}, {found}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
        near = suggestion(str(details["input"]), choices)
        return f"{text}; did you mean {quoted(near)}?" if near else text
    return text


@functools.lru_cache(maxsize=1024)
def _unknown_key(layout: Layout, table: Table, key: str) -> str:
    """Return the message for a key that ``table`` does not have."""
    if owners := layout.owners_of(key, table):
        return f"unknown key here; it is a key of {alternatives(owners)}"
    if near := suggestion(key, table.model_fields):
        return f"unknown key; did you mean {quoted(near)}?"
    if table in (layout.settings, layout.job):
        for name, inner in layout.tables.items():
            if near := suggestion(key, inner.model_fields):
                return f"unknown key; did you mean {quoted(f'{name}.{near}')}?"
    return f"{NO_SUCH_KEY}{', '.join(sorted(table.model_fields))}"
