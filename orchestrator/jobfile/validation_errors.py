"""Messages about invalid job files: places, suggestions, and what pydantic's errors mean to a
user.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import json
import re
from collections.abc import Collection
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator.core.errors import Problem
from orchestrator.core.text import LONGEST_LINE
from orchestrator.jobfile.curriculum_table import CurriculumTable
from orchestrator.jobfile.hyperparameters import ALGORITHMS, PolicyKwargs
from orchestrator.jobfile.search_tables import (
    DimensionTable,
    MeasureTable,
    SchedulerTable,
    SearchTable,
)
from orchestrator.jobfile.slurm_tables import SlurmTable
from orchestrator.jobfile.toml_models import (
    Distributed,
    Entry,
    JobFile,
    NotifyTable,
    ResourcesTable,
    Retry,
    Settings,
    UrdfTable,
)
from orchestrator.jobfile.track_tables import MlflowTable, TrackioTable, TrackTable, WandbTable
from orchestrator.jobfile.value_types import ExpectedError

Location = tuple[int | str, ...]
"""Path of a value in the file: ``("jobs", 3, "ppo", "n_steps")``."""

TABLES: dict[str, type[BaseModel]] = {
    **ALGORITHMS,
    **{
        "policy_kwargs": PolicyKwargs,
        "resources": ResourcesTable,
        "distributed": Distributed,
        "retry": Retry,
    },
    **{"urdf": UrdfTable, "curriculum": CurriculumTable},
}
"""Tables of a job with fixed keys."""
FREE_TABLES = ("env_kwargs", "evaluate", "model", "params", "randomize", "task_options")
"""Tables of a job with any keys."""

_NO_CLASS = "cannot be set in a job file"
_OPTIMIZER = "cannot be set: every learner uses the optimiser of Stable-Baselines3 (for PPO, Adam with eps = 1e-5)"
_NOT_CONFIGURABLE = {
    "seed": "is set by the job's seeds, a list: seeds = [0]",
    "device": "follows from the job's resources: resources.gpus = 1 trains on a GPU",
    "verbose": "cannot be set: the command shows progress, and progress.csv records it",
    "tensorboard_log": "cannot be set: logged values are in progress.csv in the job's directory",
    "optimize_memory_usage": "cannot be set: Stable-Baselines3 would treat time limits as terminations",
    **dict.fromkeys(("rollout_buffer_class", "rollout_buffer_kwargs"), _NO_CLASS),
    **dict.fromkeys(
        ("replay_buffer_class", "replay_buffer_kwargs", "_init_setup_model"), _NO_CLASS
    ),
}
"""Keyword arguments of the algorithms that a job file cannot set, and what to do instead."""
_INSTEAD: dict[tuple[type[BaseModel], str], str] = {
    **{
        (table, name): why
        for table in ALGORITHMS.values()
        for name, why in _NOT_CONFIGURABLE.items()
    },
    (PolicyKwargs, "optimizer_class"): _OPTIMIZER,
    (PolicyKwargs, "optimizer_kwargs"): _OPTIMIZER,
    (PolicyKwargs, "features_extractor_class"): _NO_CLASS,
    (PolicyKwargs, "features_extractor_kwargs"): _NO_CLASS,
    (Settings, "seed"): "unknown key; use seeds, a list: seeds = [0]",
    (Settings, "device"): "unknown key; resources.gpus = 1 trains on a GPU",
    (Settings, "xml"): "belongs in a [[jobs]] table",
    (Settings, "name"): "belongs in a [[jobs]] table",
    **dict.fromkeys(
        ((JobFile, "on_end"), (JobFile, "on_failure")),
        "unknown key here; it belongs in the table notify",
    ),
    (JobFile, "job"): "unknown key; did you mean [[jobs]]?",
    (JobFile, "default"): "unknown key; did you mean [defaults]?",
}

_SYNONYMS = {
    **dict.fromkeys(("lr", "step_size"), "learning_rate"),
    **dict.fromkeys(
        ("steps", "timesteps", "env_steps", "num_timesteps", "n_timesteps", "budget"),
        "total_timesteps",
    ),
    **dict.fromkeys(("epochs", "num_epochs", "update_epochs"), "n_epochs"),
    **dict.fromkeys(("envs", "num_envs", "n_env"), "n_envs"),
    **dict.fromkeys(("rollout_steps", "num_steps", "horizon"), "n_steps"),
    **dict.fromkeys(("minibatch_size", "mini_batch_size"), "batch_size"),
    **dict.fromkeys(("entropy_coef", "entropy_coeff"), "ent_coef"),
    **dict.fromkeys(("value_coef", "vf_coeff"), "vf_coef"),
    **dict.fromkeys(("hidden_sizes", "hidden_layers", "layers"), "net_arch"),
    **{"discount": "gamma", "lambda": "gae_lambda", "lam": "gae_lambda", "clip": "clip_range"},
    **{"robot": "xml", "file": "xml", "algorithm": "algo"},
    **{
        "package_paths": "asset_paths",
        "package_dirs": "asset_paths",
        "ground": "floor",
        "hz": "frequency",
    },
}
"""What other programs call keys → the keys."""
LONGEST_NUMBER = 20
"""Digits of a number in a key that decide its place; Python converts no number of thousands of
digits."""


class Problems:
    """The problems found so far in one job file, each once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}

    def add(self, where: str, message: str) -> None:
        """Note a problem; the parameters, of which long ones are cut, are fields of
        :class:`.Problem`.
        """
        self._problems[Problem(where=_cut(where), message=_cut(message))] = None

    def __bool__(self) -> bool:
        return bool(self._problems)

    def in_order(self) -> list[Problem]:
        """The problems sorted by place, ``jobs[2]`` before ``jobs[10]``."""

        def order(problem: Problem) -> list[int | str]:
            return [
                int(part[:LONGEST_NUMBER]) if part.isdecimal() else part
                for part in re.split(r"([0-9]+)", problem.where)
            ]

        return sorted(self._problems, key=order)


def _cut(text: str) -> str:
    """The beginning and the end of a text that repeats a long value of the user."""
    half = LONGEST_LINE // 2
    return text if len(text) <= LONGEST_LINE else f"{text[:half]}…{text[-half:]}"


def place(*parts: int | str) -> str:
    """``("jobs", 3, "ppo", "n_steps")`` → ``jobs[3].ppo.n_steps``."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (
                part if re.fullmatch(r"[\w-]+", part, re.ASCII) else quoted(part)
            )
    return text


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def suggestion(word: str, known: Collection[str]) -> str | None:
    """The known word most similar to ``word``; None when none is similar."""
    spelt, *names = (name.lower().replace("-", "_") for name in (word, *known))
    by_plain = dict(zip(names, known, strict=True))
    close = difflib.get_close_matches(spelt, by_plain, n=1, cutoff=0.7)
    close += [
        name for name in by_plain if sorted(name) == sorted(spelt)
    ]  # letters in another order
    close += [name for name in by_plain if len(spelt) > 2 and name.startswith(spelt)]
    return by_plain[close[0]] if close else None


def message_for(location: Location, details: ErrorDetails) -> tuple[str, str | None]:
    """The message for one of pydantic's errors, and for a misspelt key the key that was probably
    intended.
    """
    if (
        details["type"] == "extra_forbidden"
        and location[-1] == "seed"
        and isinstance(details["input"], list)
    ):
        return f"unknown key; did you mean seeds = {_toml(details['input'])[:60]}?", "seeds"
    if details["type"] == "extra_forbidden":
        return _unknown_key(_model_at(location[:-1]), str(location[-1]))
    return _wrong_value(location, details), None


def _wrong_value(location: Location, details: ErrorDetails) -> str:
    kind, value = details["type"], details["input"]
    if location == ("jobs",) and kind in ("missing", "too_short"):
        return "there are no jobs; add a [[jobs]] table with at least name and xml"
    if location == ("jobs",) and isinstance(value, dict):
        return "expected a list of tables: write [[jobs]] with double brackets above each job"
    if kind == "missing":
        return f"missing; add for example {_example(location)}"
    if kind == "invalid_key":
        return f"a key must be text, found {_shown(value)}"
    if kind == "value_error":
        error = details["ctx"]["error"]
        return f"{error}, found {_shown(value)}" if isinstance(error, ExpectedError) else str(error)
    info, example = _field_at(location), _example(location)
    advice = _hint(value, info) or (f"; for example {example}" if example else "")
    return f"expected {_expected(info)}, found {_shown(value)}{advice}"


@functools.lru_cache(maxsize=1024)
def _unknown_key(model: type[BaseModel], name: str) -> tuple[str, str | None]:
    is_settings = model in (Settings, Entry)
    instead = _INSTEAD.get((Settings if is_settings else model, name)) or _belongs(model, name)
    if instead is not None:
        return instead, _table_with(name) if is_settings else None
    synonym = _SYNONYMS.get(name.lower(), name)
    suggested = synonym if synonym in model.model_fields else suggestion(name, model.model_fields)
    if suggested is not None:
        return f"unknown key; did you mean {quoted(suggested)}?", suggested
    if is_settings:
        for table, table_model in TABLES.items():
            suggested = (
                synonym
                if synonym in table_model.model_fields
                else suggestion(name, table_model.model_fields)
            )
            if suggested is not None:
                return f"unknown key; did you mean {quoted(f'{table}.{suggested}')}?", table
    return f"unknown key; known keys: {', '.join(sorted(model.model_fields))}", None


def _belongs(model: type[BaseModel], name: str) -> str | None:
    """The message for a key that exists but is in the wrong table; None for an unknown key."""
    table = _table_with(name)
    if name in Entry.model_fields and model is JobFile:
        where = (
            "in [defaults] or in a [[jobs]] table"
            if name in Settings.model_fields
            else "in a [[jobs]] table"
        )
    elif name in Entry.model_fields:
        where = "to the job itself, not to a table of it"
    elif table in ALGORITHMS and model in ALGORITHMS.values():
        return f"unknown key here; {table} has it, {_name_of(model)} has {', '.join(sorted(model.model_fields))}"
    elif table is not None:
        several = sum(name in algorithm.model_fields for algorithm in ALGORITHMS.values()) > 1
        where = (
            f"in the table {table}: {table}.{name}"
            + " (or in the table of the job's algorithm)" * several
        )
    elif name in JobFile.model_fields:
        where = "at the top of the file"
    else:
        return None
    return f"unknown key here; it belongs {where}"


def _table_with(name: str) -> str | None:
    return next((table for table, model in TABLES.items() if name in model.model_fields), None)


def _name_of(model: type[BaseModel]) -> str:
    return next(name for name, table in TABLES.items() if table is model)


def _model_at(location: Location) -> type[BaseModel]:
    """The model of the table at ``location``."""
    tables: dict[str, type[BaseModel]] = {
        "defaults": Settings,
        "jobs": Entry,
        "notify": NotifyTable,
        **TABLES,
    }
    tables |= {
        "search": SearchTable,
        "scheduler": SchedulerTable,
        "space": DimensionTable,
        "measures": MeasureTable,
    }
    tables |= {
        "track": TrackTable,
        "wandb": WandbTable,
        "mlflow": MlflowTable,
        "trackio": TrackioTable,
        "slurm": SlurmTable,
    }
    return next(
        (tables[part] for part in reversed(location) if isinstance(part, str) and part in tables),
        JobFile,
    )


def _field_at(location: Location) -> FieldInfo | None:
    return (
        _model_at(location[:-1]).model_fields.get(location[-1])
        if isinstance(location[-1], str)
        else None
    )


def _expected(info: FieldInfo | None) -> str:
    if info is None:
        return "a table"
    kind = _kind(info)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(quoted, get_args(kind)))}"
    if kind in (int, float):
        return _limited("a whole number" if kind is int else "a number", info)
    if get_origin(kind) is list:
        return "a list"
    return {bool: "true or false", str: "text in quotes"}.get(kind, "a table")


def _kind(info: FieldInfo) -> Any:
    """The field's type, without None."""
    kinds = get_args(info.annotation)
    return (
        next(kind for kind in kinds if kind is not NoneType)
        if NoneType in kinds
        else info.annotation
    )


def _limited(number: str, info: FieldInfo) -> str:
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
            return f"{number} from {least} to {_toml(most)}"
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


def _example(location: Location) -> str:
    info = _field_at(location)
    if info is None or not info.examples:
        return ""
    return f"{place(location[-1])} = {_toml(info.examples[0])}"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():  # Python refuses to spell out numbers of thousands of digits
            return f"{value:_}" if abs(value) < 10**18 else "a number of more than 18 digits"
        case str():
            return quoted(value if len(value) <= 60 else value[:60] + "…")
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            parts = ", ".join(f"{place(key)} = {_toml(part)}" for key, part in value.items())
            return f"{{ {parts} }}" if parts else "{}"
        case datetime.date() | datetime.time():
            return f"the date or time {value}"
    return "nothing" if value is None else f"{value!r:.60}"


def _shown(value: Any) -> str:
    text = _toml(value)
    if isinstance(value, str):
        return f"the text {text}"
    if isinstance(value, (list, dict)):
        kind = "list" if isinstance(value, list) else "table"
        return f"the {kind} {text}" if len(text) <= 60 else f"a {kind}"
    return text
