"""Validates a parsed job file key by key, and splits it into layers of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from orchestrator.core.decoding import Table
from orchestrator.core.text import storable
from orchestrator.jobfile.messages import Location, message_for
from orchestrator.jobfile.toml_models import Entry, JobFile, Settings
from orchestrator.keys.problems import Problems, place, suggestion
from orchestrator.keys.value_types import TomlTable


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings written in one place; a job's settings are several layers, of which the last one
    wins, key by key.
    """

    values: Table
    where: Callable[[str], str]
    """The place of a dotted key of this layer, for messages."""

    def has(self, dotted: str) -> bool:
        """Return whether the layer sets this key."""
        tree: Any = self.values
        for part in dotted.split("."):
            if not isinstance(tree, Mapping) or part not in tree:
                return False
            tree = tree[part]
        return True


@dataclass(slots=True, kw_only=True)
class Checked:
    """A job file's tables, validated key by key.

    They hold only the keys that the user wrote, in the units of the program. Invalid keys are
    left out.
    """

    top: dict[str, Any]
    """Empty if a key at the top is missing."""
    defaults: dict[str, Any]
    entries: list[dict[str, Any]]
    broken: dict[int | str, set[str]]
    """Invalid keys of ``"defaults"``, ``"--set"`` and each entry by number, and what they were
    probably meant to be; an empty one where there is no table."""


def check(data: Table, problems: Problems) -> Checked:
    """Validate a parsed job file: its problems are added to ``problems``, its valid keys are
    returned.
    """
    document = as_plain(data)
    of_defaults = document.pop("defaults", {})
    jobs = document.pop("jobs", None)
    if not isinstance(jobs, list) or not jobs:
        message = "expected [[jobs]] tables, with double brackets, each with at least name and xml"
        problems.add("jobs", message)
        jobs = []
    top, _ = _written(JobFile, {**document, "jobs": [{}]}, (), problems)
    top.pop("jobs", None)
    defaults, wrong_defaults = _written(Settings, of_defaults, ("defaults",), problems)
    entries = [_written(Entry, job, ("jobs", at), problems) for at, job in enumerate(jobs)]
    return Checked(
        top=top,
        defaults=defaults,
        entries=[values for values, _ in entries],
        broken={"defaults": wrong_defaults, **{at: bad for at, (_, bad) in enumerate(entries)}},
    )


def check_one(name: str, value: Any, where: str, problems: Problems) -> dict[str, Any] | None:
    """Validate one dotted key of the settings (``"ppo.n_steps"``) as if it stood in [defaults].

    Return it as nested tables, or None if it is invalid and its problem is in ``problems``.
    """
    nested = value
    for part in reversed(name.split(".")):
        nested = {part: nested}
    own = Problems()
    values, _ = _written(Settings, as_plain(nested), ("defaults",), own)
    for problem in own.in_order():
        problems.add(where, problem.message)
    return None if own else values


def as_plain(value: Any) -> Any:
    """Return a copy with every table as a dict with keys of text, every sequence as a list, every
    number of NumPy as one of Python, and text that UTF-8 can hold.
    """
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {storable(str(key)): as_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:  # NumPy is not imported here
        return value.item()
    return value


def _written(
    model: type[TomlTable], table: Any, location: Location, problems: Problems
) -> tuple[dict[str, Any], set[str]]:
    """Return the valid keys that the user has written into a table, in the units of the program; and
    the invalid ones, whose problems are noted, with what they were probably meant to be.
    """
    try:
        return model.model_validate(table).model_dump(exclude_unset=True), set()
    except ValidationError as error:
        errors = error.errors(include_url=False)
    invalid: set[str] = set()
    for details in errors:
        there = (*location, *details["loc"])
        problems.add(place(*there), message_for(there, details))
        key = str(details["loc"][0]) if details["loc"] else ""
        invalid |= {key, suggestion(key, model.model_fields) or key}
    valid = {} if "" in invalid else {k: v for k, v in table.items() if k not in invalid}
    try:
        return model.model_validate(valid).model_dump(exclude_unset=True), invalid
    except ValidationError:  # a key is missing
        return {}, invalid
