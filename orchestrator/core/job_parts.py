"""Parts of jobs: what features add to single trainings, from the job file to the training loop.

A job has the part of a feature where the feature's table asks for something. It is a frozen
dataclass in :attr:`.WorkerSpec.parts`, under the name of that table. What the worker tells of it is
another one: in progress messages, in ``exit.json`` and in checkpoints. In ``spec.json``,
``exit.json`` and messages the fields of both stand beside those of the program, as if they were its
own.

A job that a feature has nothing to do with has no part of it, and its files say nothing of it: they
are the same with and without the feature.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_type_hints

from orchestrator.core.decoding import field_values, from_values
from orchestrator.core.feature import NAME, add_named, owner, problems_of
from orchestrator.core.text import shortened


class News(NamedTuple):
    """An event of a job, which people are told of while it runs."""

    kind: str
    text: str
    values: Mapping[str, Any]
    """Of the event in ``--json``."""


class Mark(NamedTuple):
    """What is marked on the learning curves of a report."""

    column: str
    """Of ``progress.csv``: each of its rises is marked, at the env_steps of the row before."""
    meaning: str
    """As in "Triangles: …"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """What a feature adds to single trainings."""

    name: str
    """Key of its table in a job."""
    settings: type
    """A frozen dataclass, the part of a spec. All fields have defaults and decide the result of the
    training; a job with these defaults does not have the part, nor has one that :attr:`is_unused`
    names. A field has the name of its key in the table, unless :attr:`keys` says otherwise; one with
    the name of the part, a mapping, is the whole table. A mapping is empty by default."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Field → key in the table."""
    written_without: tuple[str, ...] = ()
    """Fields that ``spec.json`` has even of a job without the part, as earlier versions have written
    it: as empty mappings, which say as much as nothing."""
    loop: str | None
    """Module of the worker with ``loop_part(context)``
    (:class:`orchestrator.worker.training.loop_parts.LoopContext`). It is imported only by workers
    whose jobs have the part. None: the part has said how the robot is made, of which the job has its
    copy, and does nothing in the training."""
    facts: type | None = None
    """A frozen dataclass, what a worker tells of it. All fields have defaults."""
    columns: Mapping[str, Callable[[Any], int | float | str | None]] = field(default_factory=dict)
    """Columns of ``status`` and ``summary.csv``, from the facts; none has the name of one of
    :data:`SUMMARY_COLUMNS` or :data:`TIME_COLUMNS`."""
    news: Callable[[Any, Any, Any], Iterable[News]] | None = None
    """Events, from the settings, the facts of the message before and those of this one."""
    mark: Mark | None = None
    is_unused: Callable[[Any], bool] = lambda settings: bool(settings == type(settings)())
    """Whether a job with these settings does not have the part."""
    why_extended_differs: str = ""
    """Why a job that is trained further has other weights than one of that length from the
    beginning; empty: for no reason of its own."""

    @property
    def field_names(self) -> frozenset[str]:
        """Of settings and facts: no other part has one of the same name, nor has the program."""
        return _names(self.settings) | _names(self.facts)

    def table(self, settings: Any) -> dict[str, Any]:
        """The table of a job that has ``settings``."""
        values = field_values(settings)
        whole: Mapping[str, Any] = values.pop(self.name, {})
        return {**whole, **{self.keys.get(name, name): one for name, one in values.items()}}


@functools.cache
def job_parts() -> Mapping[str, JobPart]:
    """By name; one that cannot be used is left out."""
    found: dict[str, JobPart] = {}
    add_named(found, "job_parts", "part of jobs", "part of jobs {}", _problem_of)
    return found


HOLDERS = (("worker_spec", "WorkerSpec"), ("exit_record", "ExitRecord"), ("messages", "Progress"))
"""Modules of this package and their dataclasses, beside whose fields those of parts stand."""

SUMMARY_COLUMNS = frozenset(
    (
        "job_id",
        "name",
        "state",
        "cause",
        "message",
        "traceback",
        "xml",
        "task",
        "algo",
        "seed",
        "learner",
        "learner_reason",
        "attempts",
        "env_steps",
        "total_timesteps",
        "ep_rew_mean_first",
        "ep_rew_mean",
        "eval_mean",
        "env_steps_per_s",
        "queue_s",
        "wall_s",
        "cpu_s",
        "import_s",
        "first_step_s",
        "checkpoint_s",
        "eval_s",
        "max_rss_mib",
        "started_at",
        "ended_at",
        "ranks",
        "node",
        "cpus",
        "pid",
        "robot_hash",
        "weights_sha256",
        "parent",
        "lineage_env_steps",
        "divergences",
        "waits_for",
        "measures",
    )
)
"""The columns of ``summary.csv``, and of ``status --json``, that every job has."""
TIME_COLUMNS = frozenset(("started", "ended"))
"""Further columns of ``summary.csv``: times in ISO 8601."""


def _fields_of_program() -> frozenset[str]:
    """Names of the fields of the program's own specs, records and messages.

    Their modules import this one, so that they are not imported before they are needed.
    """
    kinds = [
        getattr(importlib.import_module(f"orchestrator.core.{module}"), name)
        for module, name in HOLDERS
    ]
    return frozenset().union(*map(_names, kinds))


def _problem_of(part: JobPart, others: Mapping[str, JobPart]) -> str:
    """Why it cannot be used; empty where it can."""
    if not NAME.fullmatch(part.name):
        return "this is no name of a table: expected lower case, such as curriculum"
    if part.name in others:
        return "there is one already"
    for kind in (part.settings, part.facts):
        if kind is not None and (problem := _problem_of_fields(kind)):
            return problem
    if columns := sorted(part.columns.keys() & (SUMMARY_COLUMNS | TIME_COLUMNS)):
        return f"the program itself has a column {columns[0]}"
    for other in others.values():
        if clash := sorted(part.field_names & other.field_names):
            return f"{other.name} has a field {clash[0]}, too"
        if columns := sorted(part.columns.keys() & other.columns.keys()):
            return f"{other.name} has a column {columns[0]}, too"
    if clash := sorted(part.field_names & _fields_of_program()):
        return f"the program itself has a field {clash[0]}"
    return ""


def _problem_of_fields(kind: type) -> str:
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return f"{kind.__name__} is no frozen dataclass"
    try:
        default = kind()
    except TypeError as error:
        return f"a field has no default: {error}"
    try:
        read = from_values(kind, json.loads(json.dumps(field_values(default))))
    except (TypeError, ValueError, KeyError) as error:
        return f"a field of {kind.__name__} is of a type that JSON does not have: {error}"
    if read != default:
        return f"{kind.__name__} is not the same after JSON; lists are tuples, for example"
    for name, value in field_values(default).items():
        if isinstance(value, Mapping) and value:
            return f"the default of {name} is not empty; expected it of a mapping"
    return ""


@functools.cache
def _names(kind: type | None) -> frozenset[str]:
    """Names of the fields of a dataclass; none of None, where a part tells no facts."""
    if kind is None:
        return frozenset()
    return frozenset(one.name for one in dataclasses.fields(kind))


def flat(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass that has ``parts``, and those of the parts beside them."""
    values = field_values(instance)
    for part in values.pop("parts").values():
        values |= field_values(part)
    return values


def under_keys(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the parts of a spec, under their keys in the job file:
    ``"curriculum.advance"``.
    """
    return {
        f"{name}.{key}": value
        for name, settings in parts.items()
        for key, value in job_parts()[name].table(settings).items()
    }


def in_training(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parts of a spec that do something in the training."""
    return {name: one for name, one in parts.items() if job_parts()[name].loop is not None}


def written_without() -> dict[str, Any]:
    """What ``spec.json`` says of parts that a job does not have."""
    return {name: {} for part in job_parts().values() for name in part.written_without}


def with_settings(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec of which ``values`` is :func:`flat`. What nobody knows, or can read, is
    its field ``unknown``: the feature that wrote it may be gone, or another version of it. An empty
    mapping says nothing, whoever wrote it.
    """
    own, others = _split(kind, values)
    others = {name: value for name, value in others.items() if value != {}}
    if not others:  # as in most jobs: no feature is asked for its parts
        return {**own, "parts": {}, "unknown": {}}
    parts: dict[str, Any] = {}
    read: set[str] = set()
    for part in job_parts().values():
        written = _present(part.settings, others)
        with _problems_of(part.name, "cannot read what a job has of {}"):
            if written:
                settings: Any = from_values(part.settings, written)
                if not part.is_unused(settings):
                    parts[part.name] = settings
            # In the block: what cannot be read stays unknown, so that the job is not trained.
            read |= _names(part.settings)
    unknown = {name: value for name, value in others.items() if name not in read}
    return {**own, "parts": parts, "unknown": unknown}


def with_facts(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message or record of which ``values`` is :func:`flat`, and those that nobody
    knows. A part whose facts are not valid is left out.
    """
    own, others = _split(kind, values)
    if "parts" in others:
        raise ValueError("parts: unknown field")
    if not others:
        return {**own, "parts": {}}
    parts: dict[str, Any] = {}
    read: set[str] = set()
    for part, facts, written in _facts_told(others):
        with _problems_of(part.name, "cannot read what a job tells of {}"):
            if written:
                parts[part.name] = from_values(facts, written)
        read |= _names(facts)  # what cannot be read is left out
    unknown = {name: value for name, value in others.items() if name not in read}
    return {**own, **unknown, "parts": parts}


def _split(kind: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of ``kind`` itself, and the others."""
    names = _names(kind) - {"parts", "unknown"}
    own = {name: value for name, value in values.items() if name in names}
    others = {name: value for name, value in values.items() if name not in names}
    return own, others


def _facts_told(values: Mapping[str, Any]) -> Iterator[tuple[JobPart, type, dict[str, Any]]]:
    """Each part that tells anything, the type of its facts, and its fields in ``values``."""
    for part in job_parts().values():
        if part.facts is not None:
            yield part, part.facts, _present(part.facts, values)


def _present(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``kind`` in ``values``. Earlier versions have written null for "no such part":
    it is as if it were not there, where the field itself does not admit it.
    """
    admitting = _admitting_none(kind)
    return {
        name: values[name]
        for name in _names(kind) & values.keys()
        if values[name] is not None or name in admitting
    }


@functools.cache
def _admitting_none(kind: type) -> frozenset[str]:
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if NoneType in get_args(hint))


def facts_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of parts in an exit record as it was stored, as far as they are valid."""
    found: dict[str, Any] = {}
    for part, facts, written in _facts_told(record):
        with contextlib.suppress(ValueError):  # another program wrote it; its columns stay empty
            if written:
                found[part.name] = from_values(facts, written)
    return found


def saved_facts(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The facts of parts as a checkpoint holds them: by name, and then by field."""
    return {name: field_values(facts) for name, facts in parts.items()}


def restored_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse. Earlier checkpoints have the fields in ``state`` itself."""
    saved = state.get("parts")
    found: dict[str, Any] = {}
    for part in job_parts().values():
        values = state if saved is None else saved.get(part.name, {})
        own = {name: values[name] for name in _names(part.facts) if name in values}
        if part.facts is not None and own:
            found[part.name] = part.facts(**own)
    return found


def column_names() -> list[str]:
    """The columns of all parts, in their order."""
    return [name for part in job_parts().values() for name in part.columns]


def columns_in(row: Mapping[str, object]) -> dict[str, Any]:
    """The columns of all parts in a row of the summary."""
    return {name: row.get(name) for name in column_names()}


def columns(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of all parts for a job with ``facts``; None where the job has no such part."""
    values: dict[str, Any] = dict.fromkeys(column_names())
    for part in job_parts().values():
        if part.name in facts:
            with _problems_of(part.name, "fills no column of {}"):
                for name, column in part.columns.items():
                    values[name] = _cell(column(facts[part.name]))
    return values


def _cell(value: Any) -> int | float | str | None:
    """:raises ValueError, TypeError: it is no value of a column."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or type(value) in (int, float):
        return cast("int | float | None", value)
    raise TypeError(f"expected a number, a text or None, not {value!r}")


def news(
    parts: Mapping[str, Any], before: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[News]:
    """What is new of a job.

    :param parts: of its spec.
    :param before: the facts of the message before; a part that it lacks has no news yet.
    """
    found: list[News] = []
    for name, one in facts.items():
        part = job_parts().get(name)
        if part is not None and part.news is not None and name in parts and name in before:
            with _problems_of(name, "tells no news of {}"):
                found += [_check_news(news) for news in part.news(parts[name], before[name], one)]
    return found


def _problems_of(part: str, what: str) -> contextlib.AbstractContextManager[None]:
    """:param what: as for :func:`.problems_of`, with ``{}`` for the part."""
    return problems_of(owner("job_parts", part), what.format(f"the part {part} of jobs"))


def _check_news(one: Any) -> News:
    """:raises TypeError, ValueError: it is no event."""
    if not isinstance(one, News) or not isinstance(one.text, str):
        raise TypeError(f"{one!r} is no News with a text")
    if taken := sorted({"job_id", "kind", "message"} & one.values.keys()):
        raise ValueError(f"every event has a value {taken[0]} already")
    json.dumps(one.values)
    return one
