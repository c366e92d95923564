"""What pydantic's errors mean to whoever has written a job file."""

from __future__ import annotations

import re

from pydantic_core import ErrorDetails

from orchestrator.core.text import alternatives
from orchestrator.jobfile.toml_models import (
    ALL_TABLES,
    TABLES,
    Entry,
    JobFile,
    Settings,
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
        return _unknown_key(location[:-1], str(location[-1]))
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


def _unknown_key(location: Location, key: str) -> str:
    """Return the message for a key that the table at ``location`` does not have."""
    above = [part for part in location if part in ALL_TABLES]
    table = ALL_TABLES[above[-1]] if above else JobFile
    owners: dict[str, type[TomlTable]] = {"defaults": Settings, "jobs": Entry}
    owners |= {**(TABLES if location else ALL_TABLES), "the file": JobFile}
    names = [name for name, owner in owners.items() if key in owner.model_fields]
    if names:
        return f"unknown key here; it is a key of {alternatives(names)}"
    if near := suggestion(key, table.model_fields):
        return f"unknown key; did you mean {quoted(near)}?"
    return f"{NO_SUCH_KEY}{', '.join(sorted(table.model_fields))}"
