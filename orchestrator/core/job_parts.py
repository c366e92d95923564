"""Parts of jobs: what features add to single trainings, from the job file to the training loop.

A job has the part of a feature where the feature's table asks for something. It is a frozen
dataclass in :attr:`.WorkerSpec.parts`, under the name of that table. What the worker tells of it is
another one: in progress messages, in ``exit.json`` and in checkpoints.

A job that a feature has nothing to do with has no part of it, and its files say nothing of it: they
are the same with and without the feature.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeAlias

from orchestrator.core.decoding import Table, field_values, from_values
from orchestrator.core.feature import added


class News(NamedTuple):
    """An event of a job, which people are told of while it runs."""

    kind: str
    text: str
    values: Table
    """Of the event in ``--json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """What a feature adds to single trainings."""

    name: str
    """Key of its table in a job."""
    settings: type
    """A frozen dataclass, the part of a spec. All fields have defaults and decide the result of the
    training; a job with these defaults does not have the part, nor has one that :attr:`is_unused`
    names. A field has the name of its key in the table; one with the name of the part, a mapping,
    is the whole table. A mapping is empty by default."""
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
        whole: Table = values.pop(self.name, {})
        return {**whole, **values}


@functools.cache
def job_parts() -> Mapping[str, JobPart]:
    """Return all parts by name."""
    return added("job_parts")


def read_settings(values: Table) -> dict[str, Any]:
    """Return the parts of a spec from JSON. :raises ValueError: naming the part that is wrong."""
    return _read(values, {name: part.settings for name, part in job_parts().items()})


def read_facts(values: Table) -> dict[str, Any]:
    """Likewise, what a worker tells of parts."""
    return _read(values, {name: part.facts for name, part in job_parts().items()})


def _read(values: Table, kinds: Table) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, fields in values.items():
        if kinds.get(name) is None:
            raise ValueError(f"{name}: unknown part")
        parts[name] = from_values(kinds[name], fields)
    return parts


PartSettings: TypeAlias = Annotated[Table, read_settings]
PartFacts: TypeAlias = Annotated[Table, read_facts]


def under_keys(parts: Table) -> dict[str, Any]:
    """Return the settings of the parts of a spec, under their keys in the job file:
    ``"curriculum.advance"``.
    """
    return {
        f"{name}.{key}": value
        for name, settings in parts.items()
        for key, value in job_parts()[name].table(settings).items()
    }


def in_training(parts: Table) -> dict[str, Any]:
    """Return those of the parts of a spec that do something in the training."""
    return {name: one for name, one in parts.items() if job_parts()[name].loop is not None}


def column_names() -> list[str]:
    """Return the columns of all parts, in their order."""
    return [name for part in job_parts().values() for name in part.columns]


def columns(facts: Table) -> dict[str, Any]:
    """Return the columns of all parts for a job with ``facts``; None where it has no such part."""
    return {
        name: column(facts[part.name]) if part.name in facts else None
        for part in job_parts().values()
        for name, column in part.columns.items()
    }


def news(parts: Table, before: Table, facts: Table) -> list[News]:
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
