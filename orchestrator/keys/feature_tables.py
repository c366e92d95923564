"""What features add to a job file: tables at its top, and tables of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.core.decoding import Table
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import TomlTable, key

if TYPE_CHECKING:
    from orchestrator.jobfile.job_source import JobSource
    from orchestrator.jobfile.job_table_rules import JobTableRules


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedTable:
    """A table that a feature adds."""

    name: str
    """Its key."""
    about: str
    """What it is for, for the schema."""
    model: type[TomlTable]

    @property
    def field(self) -> tuple[Any, Any]:
        """Type and field of a model that has the table."""
        if any(field.is_required() for field in self.model.model_fields.values()):
            return self.model | None, key(None, self.about, shown={})
        return self.model, key(self.model(), self.about, shown={})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTable(AddedTable):
    """A table at the top of a job file.

    It is about the run and not about what a job learns: a run directory may go on with other
    values, unless the table has a job source.
    """

    read: Callable[[Table, Problems], Any] = lambda _table, _problems: None
    """Returns what the table means, from the keys that the user has written, each valid by itself."""
    lines: Callable[[Any], Iterable[str]] = lambda _: ()
    """Lines of ``run --dry-run``, from what the table means."""
    facts: Callable[[Any], Any] | None = None
    """The same as JSON types, for ``run --dry-run --json``; None: nothing is shown."""
    job_source: Callable[[Table, int, Problems], JobSource | None] | None = None
    """Returns what decides which jobs there are, from all tables that the user has written and the
    number of ``[[jobs]]``. Tables of which one source is made have the same function here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable(AddedTable):
    """A table of jobs and of ``[defaults]``. What it means is the part of the job that has the same
    name (:mod:`orchestrator.core.job_parts`): it decides what the job learns.
    """

    rules: Callable[[], JobTableRules]
    """Asked for when a job file is read: they may import :mod:`orchestrator.jobfile`."""


def read_tables(
    tables: Mapping[str, FeatureTable], top: Table, problems: Problems
) -> dict[str, Any]:
    """Return what the tables of features mean, by name; one that is not there is read as an empty one.

    :param top: the keys at the top that the user has written, each valid by itself.
    """
    return {name: table.read(top.get(name, {}), problems) for name, table in tables.items()}


def read_job_source(
    tables: Mapping[str, FeatureTable], top: Table, entries: int, problems: Problems
) -> JobSource | None:
    """Return what decides which jobs there are, of the first table that does; None: the jobs are
    those that are declared.

    :param top: the keys at the top that the user has written, each valid by itself.
    :param entries: number of ``[[jobs]]`` tables.
    """
    for name, table in tables.items():
        if table.job_source is not None and name in top:
            return table.job_source(top, entries, problems)
    return None


def read_kept_tables(
    tables: Mapping[str, FeatureTable], top: Table, problems: Problems
) -> dict[str, Any]:
    """As :func:`read_tables`, for a job file that has been read before.

    :raises ValueError: a value is not valid any more.
    """
    checked = {
        name: table.model.model_validate(top[name]).model_dump(exclude_unset=True)
        for name, table in tables.items()
        if name in top
    }
    return read_tables(tables, checked, problems)
