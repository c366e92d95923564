"""What pydantic's errors mean to whoever has written a job file: what is wrong, what was expected
and what to do.

Tables are found by walking the models, and know themselves what other programs call their keys:
nothing here knows a table but ``[defaults]`` and ``[[jobs]]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator.keys.problems import place, quoted, suggestion
from orchestrator.keys.toml_text import toml_of, toml_text
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
        return tuple(
            name for name, info in self.settings.model_fields.items() if AnyKeys() in info.metadata
        )

    def table_at(self, location: Location) -> Table:
        """The innermost table that ``location`` is in, or is."""
        table = self.top
        names = iter([part for part in location if isinstance(part, str)])
        for name in names:
            info = table.model_fields.get(name)
            inner = None if info is None else _table_in(info.annotation)
            if info is None or inner is None:
                break
            table = inner
            if _has_users_keys(info.annotation):
                next(names, None)  # a key that the user has chosen
        return table

    def field_at(self, location: Location) -> FieldInfo | None:
        """The key that ``location`` is; None for anything else, such as a part of a list."""
        last = location[-1]
        fields = self.table_at(location[:-1]).model_fields
        return fields.get(last) if isinstance(last, str) else None

    def name_with(self, key: str) -> str | None:
        """The first table of a job that has this key."""
        for name, table in self.tables.items():
            if key in table.model_fields:
                return name
        return None


@functools.cache
def _tables_in(table: Table) -> Mapping[str, Table]:
    """Key → the table that it is."""
    found = {name: _table_in(info.annotation) for name, info in table.model_fields.items()}
    return {name: inner for name, inner in found.items() if inner is not None}


def _table_in(annotation: Any) -> Table | None:
    """The table that a value of this type is, or that it holds: in a list, or under any keys."""
    if parts := get_args(annotation):
        return next((table for part in parts if (table := _table_in(part)) is not None), None)
    is_table = isinstance(annotation, type) and issubclass(annotation, TomlTable)
    return annotation if is_table else None


def _has_users_keys(annotation: Any) -> bool:
    """Whether a value of this type has tables under keys that the user chooses."""
    is_dict = get_origin(annotation) is dict
    return is_dict or any(_has_users_keys(part) for part in get_args(annotation))


def message_for(
    layout: Layout, location: Location, details: ErrorDetails
) -> tuple[str, str | None]:
    """The message for one of pydantic's errors, and for a misspelt key the key that was probably
    intended.
    """
    is_unknown = details["type"] == "extra_forbidden"
    if is_unknown and location[-1] == "seed" and isinstance(details["input"], list):
        return f"unknown key; did you mean seeds = {toml_text(details['input'])[:60]}?", "seeds"
    if is_unknown:
        return _unknown_key(layout, layout.table_at(location[:-1]), str(location[-1]))
    return _wrong_value(layout, location, details), None


def is_key_of_no_text(details: ErrorDetails) -> bool:
    """Whether the error is that a key of a dict is no text: pydantic has ``"[key]"`` behind that."""
    is_of_key = details["loc"][-1:] == ("[key]",) and details["type"].startswith("string_")
    return is_of_key and not isinstance(details["input"], str)


def _wrong_value(layout: Layout, location: Location, details: ErrorDetails) -> str:
    kind = details["type"]
    value = details["input"]
    if location == ("jobs",) and kind in ("missing", "too_short"):
        return "there are no jobs; add a [[jobs]] table with at least name and xml"
    if location == ("jobs",) and isinstance(value, dict):
        return "expected a list of tables: write [[jobs]] with double brackets above each job"
    if kind == "missing":
        return f"missing; add for example {_example(layout, location)}"
    if kind == "invalid_key" or is_key_of_no_text(details):
        return f"a key must be text, found {toml_of(value)}"
    if kind == "value_error":
        error = details["ctx"]["error"]
        if isinstance(error, ExpectedError):
            return f"{error}, found {toml_of(value)}"
        return str(error)
    info = layout.field_at(location)
    example = _example(layout, location)
    advice = _hint(value, info) or (f"; for example {example}" if example else "")
    return f"expected {_expected_value(info)}, found {toml_of(value)}{advice}"


@functools.lru_cache(maxsize=1024)
def _unknown_key(layout: Layout, table: Table, name: str) -> tuple[str, str | None]:
    """As :func:`message_for`, for a key that ``table`` does not have."""
    is_settings = table in (layout.settings, layout.job)
    instead = table.instead.get(name) or _misplaced_key(layout, table, name)
    if instead is not None:
        return instead, layout.name_with(name) if is_settings else None
    if (suggested := _synonym(table, name) or suggestion(name, table.model_fields)) is not None:
        return f"unknown key; did you mean {quoted(suggested)}?", suggested
    if is_settings and (near := _similar_key_of_tables(layout, name)) is not None:
        own, suggested = near
        return f"unknown key; did you mean {quoted(f'{own}.{suggested}')}?", own
    return f"{NO_SUCH_KEY}{', '.join(sorted(table.model_fields))}", None


def _similar_key_of_tables(layout: Layout, name: str) -> tuple[str, str] | None:
    """A table of a job, by its name, and its key that was probably intended: rather one that other
    programs call ``name`` than one that is spelt alike.
    """
    for own, table in layout.tables.items():
        if (suggested := _synonym(table, name)) is not None:
            return own, suggested
    for own, table in layout.tables.items():
        if (suggested := suggestion(name, table.model_fields)) is not None:
            return own, suggested
    return None


def _synonym(table: Table, name: str) -> str | None:
    """The key of ``table`` that other programs call ``name``."""
    synonym = table.synonyms.get(name.lower())
    return synonym if synonym in table.model_fields else None


def _misplaced_key(layout: Layout, table: Table, name: str) -> str | None:
    """The message for a key that exists but is in the wrong table; None for an unknown key."""
    owner = layout.name_with(name)
    if name not in layout.job.model_fields and owner is not None:
        alternative = layout.tables[owner].alternative
        if alternative and table.alternative == alternative:
            own = next(own for own, model in layout.tables.items() if model is table)
            known = ", ".join(sorted(table.model_fields))
            return f"unknown key here; {owner} has it, {own} has {known}"
    where = _right_place(layout, table, name)
    return None if where is None else f"unknown key here; it belongs {where}"


def _right_place(layout: Layout, table: Table, name: str) -> str | None:
    """Where a key belongs that is in the wrong table; None for an unknown key."""
    if name in layout.job.model_fields and table is not layout.top:
        return "to the job itself, not to a table of it"
    if name in layout.settings.model_fields:
        return "in [defaults] or in a [[jobs]] table"
    if name in layout.job.model_fields:
        return "in a [[jobs]] table"
    owner = layout.name_with(name)
    if owner is not None:
        return f"in the table {owner}: {owner}.{name}{_or_in_alternative(layout, owner, name)}"
    if name in layout.top.model_fields:
        return "at the top of the file"
    if table is layout.top:
        for outer, model in _tables_in(table).items():
            if name in model.model_fields:
                return f"in the table {outer}: {outer}.{name}"
    return None


def _or_in_alternative(layout: Layout, owner: str, name: str) -> str:
    """A remark where other tables, of which a job uses one, have the key as well as ``owner``."""
    alternative = layout.tables[owner].alternative
    alike = [model for model in layout.tables.values() if model.alternative == alternative]
    n_owners = sum(name in model.model_fields for model in alike)
    return f" (or in {alternative})" if alternative and n_owners > 1 else ""


def _expected_value(info: FieldInfo | None) -> str:
    if info is None:
        return "a table"
    kind = _kind(info)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(quoted, get_args(kind)))}"
    if kind in (int, float):
        return _with_limits("a whole number" if kind is int else "a number", info)
    if get_origin(kind) is list:
        return "a list"
    return {bool: "true or false", str: "text in quotes"}.get(kind, "a table")


def _kind(info: FieldInfo) -> Any:
    """The field's type, without None."""
    kinds = get_args(info.annotation)
    if NoneType not in kinds:
        return info.annotation
    return next(kind for kind in kinds if kind is not NoneType)


def _with_limits(number: str, info: FieldInfo) -> str:
    """``number`` with both limits of the field; where it has no upper one, "finite" stands for
    it.
    """
    limits = {
        name: getattr(limit, name)
        for limit in info.metadata
        for name in ("ge", "gt", "le")
        if hasattr(limit, name)
    }
    match limits:
        case {"ge": least, "le": most}:
            return f"{number} from {least} to {toml_text(most)}"
        case {"ge": least}:
            return f"a finite number of at least {least}"
        case {"gt": least}:
            return f"a finite number above {least}"
        case _:
            return "a finite number"


def _hint(value: Any, info: FieldInfo | None) -> str:
    """What to do about a value that is nearly valid."""
    if info is None:
        return ""
    kind = _kind(info)
    if isinstance(value, str):
        looks_numeric = re.fullmatch(r"[-+]?[\d_.]+([eE][-+]?\d+)?", value.strip())
        if looks_numeric and kind in (int, float):
            return "; write it without quotes"
        if kind is bool and value.lower() in ("true", "false"):
            return f"; write it without quotes: {value.lower()}"
        choices = [choice for choice in get_args(kind) if isinstance(choice, str)]
        suggested = suggestion(value, choices) if choices else None
        return f"; did you mean {quoted(suggested)}?" if suggested else ""
    return ""


def _example(layout: Layout, location: Location) -> str:
    info = layout.field_at(location)
    if info is not None and info.examples:
        return f"{place(location[-1])} = {toml_text(info.examples[0])}"
    # Of an entry of a table that may have any keys: one of the table's own example.
    table = layout.field_at(location[:-1]) if len(location) > 1 else None
    entries = table.examples[0] if table is not None and table.examples else None
    if info is None and isinstance(entries, dict):
        for key, entry in entries.items():
            return f"{place(key)} = {toml_text(entry)}"
    return ""
