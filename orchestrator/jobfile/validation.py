"""From data that may be anything to validated layers of settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchestrator.core.errors import Problem
from orchestrator.jobfile.toml_models import Document, Entry, Settings
from orchestrator.jobfile.validation_errors import Location, message_for, place


@dataclass(slots=True)
class Checked:
    """A job file's layers, validated key by key.

    Only keys that the user wrote are there, in the units of the program; keys that were wrong are gone
    from ``defaults`` and ``entries`` and listed in ``broken``.
    """

    top: dict[str, Any]
    defaults: dict[str, Any]
    entries: list[dict[str, Any]]
    broken: dict[int | str, set[str]] = field(default_factory=dict)
    """Wrong keys of ``"defaults"`` and of each entry by number; ``"*"`` for all of them."""


def check(data: Mapping[str, Any], problems: dict[Problem, None]) -> Checked:
    """Validate a parsed job file; what is wrong goes to ``problems``, the rest is returned."""
    document = as_plain(data)
    try:
        sound = Document.model_validate(document)
    except ValidationError as error:
        return _salvage(document, error, problems)
    written = sound.model_dump(exclude_unset=True)
    return Checked(written, written.pop("defaults", {}), written.pop("jobs"))


def check_one(name: str, value: Any, where: str, problems: dict[Problem, None]) -> dict[str, Any] | None:
    """Validate one dotted key of the settings (``"ppo.n_steps"``) as if it stood in [defaults].

    Returns it as nested tables, or None when it was wrong and is now in ``problems``.
    """
    *tables, last = name.split(".")
    nested: dict[str, Any] = {last: as_plain(value)}
    for table in reversed(tables):
        nested = {table: nested}
    try:
        return Settings.model_validate(nested).model_dump(exclude_unset=True)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems[Problem(where=where, message=message_for(("defaults", *details["loc"]), details)[0])] = None
        return None


def as_plain(value: Any) -> Any:
    """A copy with tables as dict and sequences as list, so that nothing is shared with the caller."""
    if isinstance(value, Mapping):
        return {key: as_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    return value


def _salvage(document: dict[str, Any], error: ValidationError, problems: dict[Problem, None]) -> Checked:
    """Report, take the wrong keys out, and keep the rest for the checks that come later."""
    broken: dict[int | str, set[str]] = {}
    for details in error.errors(include_url=False):
        message, meant = message_for(details["loc"], details)
        problems[Problem(where=place(*details["loc"]), message=message)] = None
        layer, key = _layer_of(details["loc"])
        broken.setdefault(layer, set()).update({key, meant or key})
        _take_out(document, details["loc"])
    jobs = document.get("jobs", [])
    defaults = document.get("defaults", {})
    return Checked(
        {name: document[name] for name in ("name", "max_parallel", "order") if name in document},
        Settings.model_validate(defaults).model_dump(exclude_unset=True),
        [Entry.model_validate(entry).model_dump(exclude_unset=True) for entry in jobs],
        broken,
    )


def _layer_of(location: Location) -> tuple[int | str, str]:
    """The layer in which ``location`` lies, and the key there; ``*`` when it is the layer itself."""
    match location:
        case ("jobs", int(number), *keys):
            return number, str(keys[0]) if keys else "*"
        case ("defaults", *keys):
            return "defaults", str(keys[0]) if keys else "*"
        case _:
            return "", str(location[0])


def _take_out(document: dict[str, Any], location: Location) -> None:
    """Remove the wrong key; a job that is no table becomes an empty one, so that the others keep their numbers."""
    holder: Any = document
    for part in location[:-1]:
        holder = holder[part]
    if isinstance(holder, list):
        holder[int(location[-1])] = {}
    else:
        holder.pop(location[-1], None)
