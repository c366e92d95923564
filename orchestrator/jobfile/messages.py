"""What pydantic's errors mean to whoever has written a job file."""

from __future__ import annotations

import functools
import re

from pydantic_core import ErrorDetails

from orchestrator.core.text import alternatives
from orchestrator.jobfile.toml_models import (
    TABLES,
    Entry,
    JobFile,
    Settings,
    has_users_keys,
    tables_in,
)
from orchestrator.keys.problems import quoted, suggestion
from orchestrator.keys.toml_text import shown
from orchestrator.keys.value_types import ExpectedError, TomlTable

NO_SUCH_KEY = "unknown key; known keys: "
"""How the message for a key begins that resembles none."""
Location = tuple[int | str, ...]
"""Path of a value in the file: ``("jobs", 3, "ppo", "n_steps")``."""


def message_for(location: Location, details: ErrorDetails) -> str:
    """Return the message for one of pydantic's errors."""
    kind = details["type"]
    found = f"found {shown(details['input'])}"
    if kind == "extra_forbidden":
        return _unknown_key(_table_at(location[:-1]), str(location[-1]))
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


def _table_at(location: Location) -> type[TomlTable]:
    """Return the innermost table that ``location`` is in, or is."""
    table: type[TomlTable] = JobFile
    names = iter([part for part in location if isinstance(part, str)])
    for name in names:
        inner = tables_in(table).get(name)
        if inner is None:
            break
        if has_users_keys(table.model_fields[name].annotation):
            next(names, None)  # a key that the user has chosen
        table = inner
    return table


@functools.lru_cache(maxsize=1024)
def _unknown_key(table: type[TomlTable], key: str) -> str:
    """Return the message for a key that ``table`` does not have."""
    if owners := _owners_of(key, table):
        return f"unknown key here; it is a key of {alternatives(owners)}"
    if near := suggestion(key, table.model_fields):
        return f"unknown key; did you mean {quoted(near)}?"
    for name, inner in TABLES.items() if table in (Settings, Entry) else ():
        if near := suggestion(key, inner.model_fields):
            return f"unknown key; did you mean {quoted(f'{name}.{near}')}?"
    return f"{NO_SUCH_KEY}{', '.join(sorted(table.model_fields))}"


def _owners_of(key: str, table: type[TomlTable]) -> list[str]:
    """Return the other tables that have a key which ``table`` lacks."""
    if key in Settings.model_fields:
        return ["[defaults]", "[[jobs]]"]
    if key in Entry.model_fields:
        return ["[[jobs]]"]
    if key in JobFile.model_fields:
        return ["the file"]
    tables = {**TABLES, **(tables_in(JobFile) if table is JobFile else {})}
    return [name for name, one in tables.items() if key in one.model_fields]
