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

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.core.decoding import field_values, from_values
from orchestrator.core.feature import added


class News(NamedTuple):
    """An event of a job, which people are told of while it runs."""

    kind: str
    text: str
    values: Mapping[str, Any]
    """Of the event in ``--json``."""


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
    loop: str | None
    """Module of the worker with ``loop_part(context)``
    (:class:`orchestrator.worker.training.loop_parts.LoopContext`). It is imported only by workers
    whose jobs have the part. None: the part has said how the robot is made, of which the job has its
    copy, and does nothing in the training."""
    facts: type | None = None
    """A frozen dataclass, what a worker tells of it. All fields have defaults."""
    columns: Mapping[str, Callable[[Any], int | float | str | None]] = field(default_factory=dict)
    """Columns of ``status`` and ``summary.csv``, from the facts."""
    news: Callable[[Any, Any, Any], Iterable[News]] | None = None
    """Events, from the settings, the facts of the message before and those of this one."""
    is_unused: Callable[[Any], bool] = lambda settings: bool(settings == type(settings)())
    """Whether a job with these settings does not have the part."""
    why_extended_differs: str = ""
    """Why a job that is trained further has other weights than one of that length from the
    beginning; empty: for no reason of its own."""

    def table(self, settings: Any) -> dict[str, Any]:
        """The table of a job that has ``settings``."""
        values = field_values(settings)
        whole: Mapping[str, Any] = values.pop(self.name, {})
        return {**whole, **{self.keys.get(name, name): one for name, one in values.items()}}


@functools.cache
def job_parts() -> Mapping[str, JobPart]:
    """Return all parts by name."""
    return added("job_parts")


def flat(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that has ``parts``, and those of the parts beside them."""
    values = field_values(instance)
    for part in values.pop("parts").values():
        values |= field_values(part)
    return values


def with_settings(_: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec of which ``values`` is :func:`flat`, and those that nobody knows."""
    return _with_parts(values, {part.name: part.settings for part in job_parts().values()})


def with_facts(_: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message or record of which ``values`` is :func:`flat`, and those that
    nobody knows.
    """
    return _with_parts(values, _kinds_of_facts())


def facts_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of parts in an exit record as it was stored."""
    parts: dict[str, Any] = _with_parts(record, _kinds_of_facts())["parts"]
    return parts


def _with_parts(values: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Move the fields of each part into it; a part without any is left out.

    :param kinds: of the parts, by name. No two have a field of the same name.
    """
    own = dict(values)
    parts: dict[str, Any] = {}
    for part, kind in kinds.items():
        written = {name: own.pop(name) for name in _field_names(kind) if name in own}
        if written:
            parts[part] = from_values(kind, written)
    return {**own, "parts": parts}


@functools.cache
def _field_names(kind: Any) -> Sequence[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _kinds_of_facts() -> dict[str, type]:
    return {part.name: part.facts for part in job_parts().values() if part.facts is not None}


def saved_facts(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the facts of parts as a checkpoint holds them: by name, and then by field."""
    return {name: field_values(facts) for name, facts in parts.items()}


def restored_facts(saved: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of which ``saved`` is :func:`saved_facts`."""
    kinds = _kinds_of_facts()
    return {name: kinds[name](**fields) for name, fields in saved.items()}


def under_keys(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the parts of a spec, under their keys in the job file:
    ``"curriculum.advance"``.
    """
    return {
        f"{name}.{key}": value
        for name, settings in parts.items()
        for key, value in job_parts()[name].table(settings).items()
    }


def in_training(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the parts of a spec that do something in the training."""
    return {name: one for name, one in parts.items() if job_parts()[name].loop is not None}


def column_names() -> list[str]:
    """Return the columns of all parts, in their order."""
    return [name for part in job_parts().values() for name in part.columns]


def columns_in(row: Mapping[str, object]) -> dict[str, Any]:
    """Return the columns of all parts in a row of the summary."""
    return {name: row.get(name) for name in column_names()}


def columns(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of all parts for a job with ``facts``; None where it has no such part."""
    return {
        name: column(facts[part.name]) if part.name in facts else None
        for part in job_parts().values()
        for name, column in part.columns.items()
    }


def news(
    parts: Mapping[str, Any], before: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[News]:
    """Return what is new of a job.

    :param parts: of its spec.
    :param before: the facts of the message before; a part that it lacks has no news yet.
    """
    found: list[News] = []
    for name, one in facts.items():
        tell = job_parts()[name].news
        if tell is not None and name in parts and name in before:
            found += tell(parts[name], before[name], one)
    return found
