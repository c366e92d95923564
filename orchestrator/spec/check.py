"""From data that may be anything to validated layers of settings, and from pydantic's errors to plain words."""

from __future__ import annotations

import datetime
import difflib
import functools
import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator.errors import Problem
from orchestrator.spec.models import Document, Entry, Expected, PolicyKwargs, Ppo, ResourcesTable, Retry, Settings

Location = tuple[int | str, ...]

TABLES: dict[str, type[BaseModel]] = {
    "ppo": Ppo,
    "policy_kwargs": PolicyKwargs,
    "resources": ResourcesTable,
    "retry": Retry,
}
"""Tables of a job whose keys are known."""
FREE_TABLES = ("env_kwargs", "task_options")
"""Tables of a job that are passed on as they are."""

_NO_CLASS = "cannot be set in a job file"
_ADAM = "cannot be set: every learner uses Stable-Baselines3's own optimiser, Adam with eps = 1e-5"
_INSTEAD = {
    (Ppo, "seed"): "is set by the job's seeds, a list: seeds = [0]",
    (Ppo, "device"): "follows from the job's resources: resources.gpus = 1 trains on a GPU",
    (Ppo, "verbose"): "cannot be set: progress is shown by the command, and is in progress.csv",
    (Ppo, "tensorboard_log"): "cannot be set: the logger's values are in progress.csv of the job's directory",
    (Ppo, "rollout_buffer_class"): _NO_CLASS,
    (Ppo, "rollout_buffer_kwargs"): _NO_CLASS,
    (Ppo, "_init_setup_model"): _NO_CLASS,
    (PolicyKwargs, "optimizer_class"): _ADAM,
    (PolicyKwargs, "optimizer_kwargs"): _ADAM,
    (PolicyKwargs, "features_extractor_class"): _NO_CLASS,
    (PolicyKwargs, "features_extractor_kwargs"): _NO_CLASS,
    (Settings, "seed"): "unknown key; use seeds, a list: seeds = [0]",
    (Settings, "device"): "unknown key; resources.gpus = 1 trains on a GPU",
    (Settings, "xml"): "belongs in a [[jobs]] table",
    (Settings, "name"): "belongs in a [[jobs]] table",
    (Document, "job"): "unknown key; did you mean [[jobs]]?",
    (Document, "default"): "unknown key; did you mean [defaults]?",
}


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
            problems[Problem(where=where, message=_message(("defaults", *details["loc"]), details)[0])] = None
        return None


def as_plain(value: Any) -> Any:
    """A copy with tables as dict and sequences as list, so that nothing is shared with the caller."""
    if isinstance(value, Mapping):
        return {key: as_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    return value


def place(*parts: int | str) -> str:
    """``("jobs", 3, "ppo", "n_steps")`` → ``jobs[3].ppo.n_steps``."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if re.fullmatch(r"[\w-]+", part, re.ASCII) else quoted(part))
    return text


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def in_place_order(problem: Problem) -> tuple[int | str, ...]:
    """Sort key under which ``jobs[2]`` stands before ``jobs[10]``."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", problem.where))


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    return _suggestion(word, tuple(known))


@functools.lru_cache(maxsize=1024)
def _suggestion(word: str, known: tuple[str, ...]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def _salvage(document: dict[str, Any], error: ValidationError, problems: dict[Problem, None]) -> Checked:
    """Report, take the wrong keys out, and keep the rest for the checks that come later."""
    broken: dict[int | str, set[str]] = {}
    for details in error.errors(include_url=False):
        message, meant = _message(details["loc"], details)
        problems[Problem(where=place(*details["loc"]), message=message)] = None
        layer, key = _layer_of(details["loc"])
        broken.setdefault(layer, set()).update({key, meant or key})
        _take_out(document, details["loc"])
    jobs = document.get("jobs")
    defaults = document.get("defaults", {})
    return Checked(
        {name: document[name] for name in ("name", "max_parallel", "order") if name in document},
        Settings.model_validate(defaults).model_dump(exclude_unset=True),
        [Entry.model_validate(entry).model_dump(exclude_unset=True) for entry in jobs]
        if isinstance(jobs, list)
        else [],
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


def _message(location: Location, details: ErrorDetails) -> tuple[str, str | None]:
    """Plain words for one of pydantic's errors, and the key that was meant where one was misspelt."""
    kind, found = details["type"], details["input"]
    if kind == "extra_forbidden":
        return _unknown_key(_model_at(location[:-1]), str(location[-1]))
    if location == ("jobs",) and kind in ("missing", "too_short"):
        return "there are no jobs; add a [[jobs]] table with at least a name and an xml", None
    if location == ("jobs",) and isinstance(found, dict):
        return "expected a list of tables: write [[jobs]] with double brackets above each job", None
    if kind == "missing":
        return f"missing; add for example {_example(location)}", None
    if kind in ("value_error", "assertion_error"):
        error = details["ctx"]["error"]
        if not isinstance(error, Expected):
            return str(error), None
        return f"{error}, found {_shown(found)}", None
    if kind == "invalid_key":
        return f"a key must be text, found {_shown(found)}", None
    info = _field_at(location)
    hint = _hint(found, info)
    example = _example(location)
    return f"expected {_expected(info)}, found {_shown(found)}" + (
        hint or (f"; for example {example}" if example else "")
    ), None


def _unknown_key(model: type[BaseModel], name: str) -> tuple[str, str | None]:
    model_or_settings = Settings if model is Entry else model
    instead = _INSTEAD.get((model_or_settings, name))
    if instead is not None:
        return instead, None
    home = next((table for table, known in TABLES.items() if name in known.model_fields), None)
    if name in Entry.model_fields:
        belongs = "in [defaults] or in a [[jobs]] table" if name in Settings.model_fields else "in a [[jobs]] table"
        return (
            f"unknown key here; it belongs {belongs if model is Document else 'to the job itself, not to a table of it'}",
            None,
        )
    if home is not None:
        return f"unknown key here; it belongs in the table {home}: {home}.{name}", home
    if name in Document.model_fields:
        return "unknown key here; it belongs at the top of the file", None
    meant = suggestion(name, model.model_fields)
    if meant is not None:
        return f"unknown key; did you mean {quoted(meant)}?", meant
    if model_or_settings is Settings:
        for table, known in TABLES.items():
            meant = suggestion(name, known.model_fields)
            if meant is not None:
                return f"unknown key; did you mean {quoted(f'{table}.{meant}')}?", table
    return f"unknown key; known here: {', '.join(sorted(model.model_fields))}", None


def _model_at(location: Location) -> type[BaseModel]:
    """The table that ``location`` names."""
    model: type[BaseModel] = Document
    for part in location:
        if isinstance(part, str):
            model = {"defaults": Settings, "jobs": Entry, **TABLES}[part]
    return model


def _field_at(location: Location) -> FieldInfo | None:
    *tables, last = [part for part in location if isinstance(part, str)]
    return None if location[:1] == ("jobs",) and len(location) == 2 else _model_at(tuple(tables)).model_fields.get(last)


def _expected(info: FieldInfo | None) -> str:
    if info is None:
        return "a table"
    kinds = [kind for kind in get_args(info.annotation) if kind is not type(None)]
    kind = kinds[0] if get_origin(info.annotation) in (Union, types.UnionType) else info.annotation
    if get_origin(kind) is Literal:
        known = [quoted(value) for value in get_args(kind)]
        return known[0] if len(known) == 1 else f"one of {', '.join(known)}"
    if kind in (int, float):
        return ("a whole number" if kind is int else "a number") + _limits(info)
    if get_origin(kind) is list:
        return "a list"
    return {bool: "true or false", str: "text in quotes"}.get(kind, "a table")  # type: ignore[arg-type]


def _limits(info: FieldInfo) -> str:
    limits = {
        name: getattr(limit, name) for limit in info.metadata for name in ("ge", "gt", "le") if hasattr(limit, name)
    }
    match limits:
        case {"ge": least, "le": most} if info.annotation is float:
            return f" between {least} and {most}"
        case {"ge": 0}:
            return ", 0 or more"
        case {"ge": least}:
            return f" of at least {least}" + (f" and at most {limits['le']:_}" if limits.get("le", 0) < 10**12 else "")
        case {"gt": least}:
            return f" above {least}"
        case _:
            return ""


def _hint(found: Any, info: FieldInfo | None) -> str:
    """What to do about a value that is nearly right."""
    if info is None:
        return ""
    expected = _expected(info)
    if isinstance(found, str):
        if expected.startswith(("a number", "a whole number")) and re.fullmatch(
            r"[-+]?[\d_.]+([eE][-+]?\d+)?", found.strip()
        ):
            return "; write it without quotes"
        if expected == "true or false" and found.lower() in ("true", "false"):
            return f"; write it without quotes: {found.lower()}"
        known = [value for value in get_args(info.annotation) if isinstance(value, str)]
        meant = suggestion(found, known) if known else None
        return f"; did you mean {quoted(meant)}?" if meant else ""
    if (
        isinstance(found, float)
        and expected.startswith("a whole number")
        and found.is_integer()
        and abs(found) < 10**12
    ):
        return f"; write {int(found):_}, without point or exponent"
    return ""


def _example(location: Location) -> str:
    info = _field_at(location)
    if info is None or not info.examples:
        return ""
    return f"{place(*[part for part in location if isinstance(part, str)][-1:])} = {_toml(info.examples[0])}"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:_}"
        case str():
            return quoted(value)
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return (
                f"{{ {', '.join(f'{place(key)} = {_toml(part)}' for key, part in value.items())} }}" if value else "{}"
            )
        case _:
            return repr(value)


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {quoted(value if len(value) <= 60 else value[:60] + '…')}"
        case int() | float():
            return f"{value!r:.40}"
        case list() | dict():
            text = _toml(value)
            kind = "the list" if isinstance(value, list) else "the table"
            return f"{kind} {text}" if len(text) <= 60 else kind.replace("the", "a")
        case None:
            return "nothing"
        case datetime.date() | datetime.time():
            return f"the date or time {value}"
        case _:
            return f"{value!r:.60}"
