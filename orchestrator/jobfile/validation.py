"""Validates a parsed job file key by key, and splits it into layers of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchestrator.jobfile.toml_models import LAYOUT, Entry, JobFile, Settings
from orchestrator.keys.messages import Location, is_key_of_no_text, message_for
from orchestrator.keys.problems import Problems, place

Report = Callable[[Sequence[str], str], None]
"""Notes a problem: the dotted keys that may be at fault, and the message."""
_KEPT_AT_TOP = ("name", "max_parallel", "order", "on_invalid")
"""Of a job file with problems: tables of features are not read then."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings written in one place; a job's settings are several layers, of which the last one
    wins, key by key.
    """

    values: Mapping[str, Any]
    where: Callable[[str], str]
    """The place of a dotted key of this layer, for messages."""

    def has(self, dotted: str) -> bool:
        """Whether the layer sets this key."""
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
    removed from ``defaults`` and ``entries`` and listed in ``broken``.
    """

    top: dict[str, Any]
    defaults: dict[str, Any]
    entries: list[dict[str, Any]]
    broken: dict[int | str, set[str]] = field(default_factory=dict)
    """Invalid keys of ``"defaults"``, ``"--set"`` and each entry by number; ``"*"`` stands for all
    of them."""


def check(data: Mapping[str, Any], problems: Problems) -> Checked:
    """Validate a parsed job file: its problems are added to ``problems``, its valid keys are
    returned.

    :raises UnicodeEncodeError: a text is not Unicode; :func:`not_unicode` says so.
    """
    document = as_plain(data)
    try:
        document_model = JobFile.model_validate(document)
    except ValidationError as error:
        return _salvage(document, error, problems)
    top = document_model.model_dump(exclude_unset=True)
    defaults = top.pop("defaults", {})
    entries = top.pop("jobs")
    return Checked(top=top, defaults=defaults, entries=entries)


def check_one(name: str, value: Any, where: str, problems: Problems) -> dict[str, Any] | None:
    """Validate one dotted key of the settings (``"ppo.n_steps"``) as if it stood in [defaults].

    Returns it as nested tables, or None when it is invalid and its problem is in ``problems``.
    """
    *tables, last = name.split(".")
    nested: dict[str, Any] = {last: as_plain(value)}
    for table in reversed(tables):
        nested = {table: nested}
    try:
        return Settings.model_validate(nested).model_dump(exclude_unset=True)
    except UnicodeEncodeError as error:
        problems.add(where, not_unicode(error))
        return None
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems.add(where, message_for(LAYOUT, ("defaults", *details["loc"]), details)[0])
        return None


def not_unicode(error: UnicodeEncodeError) -> str:
    """The message for text of a command line or of a program that is not Unicode, which pydantic
    cannot take into a message.
    """
    text = str(error.object)[max(0, error.start - 20) : error.end + 20]
    return f"expected Unicode text, found a character that is none in {text!a}"


def as_plain(value: Any) -> Any:
    """A copy with every table as a dict, every sequence as a list and every number of NumPy as one
    of Python.

    Nothing is shared with the caller.
    """
    if isinstance(value, Mapping):
        return {key: as_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:  # NumPy is not imported here
        return value.item()
    return value


def _salvage(document: dict[str, Any], error: ValidationError, problems: Problems) -> Checked:
    """Add the problems, remove the invalid keys, and keep the others for later checks."""
    broken: dict[int | str, set[str]] = {}
    for details in error.errors(include_url=False):
        location = details["loc"]
        message, intended_key = message_for(LAYOUT, location, details)
        if is_key_of_no_text(details):
            location = location[:-1]
        problems.add(place(*location), message)
        is_in_entry = location[0] == "jobs" and len(location) > 1
        # The first part names the table, as Checked.broken does: an entry by its number.
        table, *keys = location[1:] if is_in_entry else location
        key = str(keys[0]) if keys else "*"
        broken.setdefault(table, set()).update({key, intended_key or key})
        _remove(document, location)
    return Checked(
        top={name: document[name] for name in _KEPT_AT_TOP if name in document},
        defaults=_written_keys(Settings, document.get("defaults", {})),
        entries=[_written_keys(Entry, entry) for entry in document.get("jobs", [])],
        broken=broken,
    )


def _remove(document: dict[str, Any], location: Location) -> None:
    """Take an invalid value out of a parsed job file.

    A value may stand for a table, as ``reevaluate = 5`` does for ``{ n = 5 }``, whose key is in the
    location: then the value goes.
    """
    holder: Any = document
    *above, key = location
    for step in above:
        inner = holder.get(step) if isinstance(holder, dict) else holder[step]
        if not isinstance(inner, dict | list):
            key = step
            break
        holder = inner
    if isinstance(holder, list):
        holder[int(key)] = {}  # so that the other jobs keep their numbers
    else:
        holder.pop(key, None)


def _written_keys(model: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the user has written, in the units of the program."""
    return model.model_validate(values).model_dump(exclude_unset=True)
