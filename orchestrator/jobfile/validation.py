"""Validates a parsed job file key by key, and splits it into layers of settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchestrator.core.text import storable
from orchestrator.jobfile.messages import message_for
from orchestrator.jobfile.toml_models import Entry, JobFile, Settings
from orchestrator.keys.problems import Problems, place, suggestion

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
    removed from ``defaults`` and ``entries`` and listed in ``broken``.
    """

    top: dict[str, Any]
    defaults: dict[str, Any]
    entries: list[dict[str, Any]]
    broken: dict[int | str, set[str]] = field(default_factory=dict)
    """Invalid keys of ``"defaults"``, ``"--set"`` and each entry by number, and what they were
    probably meant to be; an empty one where there is no table."""


def check(data: Mapping[str, Any], problems: Problems) -> Checked:
    """Validate a parsed job file: its problems are added to ``problems``, its valid keys are
    returned.
    """
    document = as_plain(data)
    try:
        top = JobFile.model_validate(document).model_dump(exclude_unset=True)
    except ValidationError as error:
        return _valid_part(document, error, problems)
    return Checked(defaults=top.pop("defaults", {}), entries=top.pop("jobs"), top=top)


def check_one(name: str, value: Any, where: str, problems: Problems) -> dict[str, Any] | None:
    """Validate one dotted key of the settings (``"ppo.n_steps"``) as if it stood in [defaults].

    Return it as nested tables, or None if it is invalid and its problem is in ``problems``.
    """
    nested = value
    for part in reversed(name.split(".")):
        nested = {part: nested}
    try:
        return Settings.model_validate(as_plain(nested)).model_dump(exclude_unset=True)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            problems.add(where, message_for(("defaults", *details["loc"]), details))
        return None


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


def _valid_part(document: dict[str, Any], error: ValidationError, problems: Problems) -> Checked:
    """Add the problems, and return what is valid."""
    broken: dict[int | str, set[str]] = {}
    for details in error.errors(include_url=False):
        location = details["loc"]
        problems.add(place(*location), message_for(location, details))
        # To a key of an entry, of [defaults], or of the file.
        *above, last = location[: {"jobs": 3, "defaults": 2}.get(str(location[0]), 1)]
        holder: Any = document
        for step in above:
            holder = holder[step]
        if isinstance(last, int):
            holder[last] = {}  # so that the other jobs keep their numbers
            broken.setdefault(last, set()).add("")
        else:
            holder.pop(last, None)
            meant = suggestion(last, Entry.model_fields) or last
            broken.setdefault(above[-1] if above else "", set()).update({last, meant})
    return Checked(
        top={name: document[name] for name in _KEPT_AT_TOP if name in document},
        defaults=_written_keys(Settings, document.get("defaults", {})),
        entries=[_written_keys(Entry, entry) for entry in document.get("jobs", [])],
        broken=broken,
    )


def _written_keys(model: type[Settings], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that the user has written, in the units of the program."""
    return model.model_validate(values).model_dump(exclude_unset=True)
