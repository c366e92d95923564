"""What features add to a job file: tables at its top, and tables and keys of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.core.feature import NAME, add_named, note_problem, owner
from orchestrator.core.job_parts import job_parts
from orchestrator.core.text import alternatives
from orchestrator.core.worker_spec import KEYS_OF_FEATURES
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
    def required(self) -> Sequence[str]:
        """Its keys without a default: who writes the table has to write these."""
        return [name for name, one in self.model.model_fields.items() if one.is_required()]

    @property
    def field(self) -> tuple[Any, Any]:
        """Type and field of a model that has it."""
        if self.required:
            return self.model | None, key(None, self.about, shown={})
        return self.model, key(self.model(), self.about, shown={})


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTable(AddedTable):
    """A table at the top of a job file.

    It is about the run and not about what a job learns: a run directory may go on with other
    values, unless the table has a job source.
    """

    read: Callable[[Mapping[str, Any], Problems], Any] = lambda _table, _problems: None
    """What it means: from the keys that the user has written, each valid by itself."""
    lines: Callable[[Any], Iterable[str]] = lambda _: ()
    """Of ``run --dry-run``, from what the table means."""
    facts: Callable[[Any], Any] | None = None
    """The same as JSON types, for ``run --dry-run --json``; None: nothing is shown."""
    job_source: Callable[[Mapping[str, Any], int, Problems], JobSource | None] | None = None
    """What the table means for the jobs, where it is written: from all tables that the user has
    written, and the number of ``[[jobs]]``. Tables of which one source is made have the same
    function here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTable(AddedTable):
    """A table of jobs and of ``[defaults]``. What it means is the part of the job that has the same
    name (:mod:`orchestrator.core.job_parts`): it decides what the job learns.
    """

    rules: Callable[[], JobTableRules]
    """Asked for when a job file is read: they may import :mod:`orchestrator.jobfile`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKey:
    """A key of jobs and of ``[defaults]`` that is no table: a fact that every spec has, and of which
    no result depends.
    """

    name: str
    """One of :data:`.KEYS_OF_FEATURES`."""
    field: tuple[Any, Any]
    """Type and field of a model that has it, the latter made by :func:`.key`."""


def feature_tables(taken: Collection[str]) -> Mapping[str, FeatureTable]:
    """Those at the top, by name; one that is no table, or whose name is taken, is left out.

    :param taken: the keys at the top of a job file and of a job.
    """
    found: dict[str, FeatureTable] = {}

    def problem_of(table: FeatureTable, others: Collection[str]) -> str:
        return _problem_of(table, {*taken, *others})

    add_named(found, "job_file", "table", "table [{}]", problem_of)
    return found


def job_tables(taken: Collection[str]) -> Mapping[str, JobTable]:
    """Those of jobs, by name; one that is no table, or whose name is taken, or that has no part of
    jobs, is left out.

    :param taken: the keys of a job and at the top of a job file that the program has.
    """
    found: dict[str, JobTable] = {}

    def problem_of(table: JobTable, others: Collection[str]) -> str:
        if table.name not in job_parts():
            return "its feature has no part of jobs with this name"
        return _problem_of(table, {*taken, *others})

    add_named(found, "job_tables", "table of jobs", "table {} of jobs", problem_of)
    return found


def job_keys(taken: Collection[str]) -> Mapping[str, JobKey]:
    """Those of jobs, by name; one whose name is taken, or that is no fact of specs, is left out.

    :param taken: the keys of a job and at the top of a job file that the program has.
    """
    found: dict[str, JobKey] = {}

    def problem_of(added: JobKey, others: Collection[str]) -> str:
        if added.name in taken or added.name in others:
            return "there is such a key already"
        if added.name not in KEYS_OF_FEATURES:
            return f"expected a fact of specs: {alternatives(KEYS_OF_FEATURES)}"
        return ""

    add_named(found, "job_keys", "key of jobs", "key {} of jobs", problem_of)
    return found


def _problem_of(table: AddedTable, taken: Collection[str]) -> str:
    """Why it cannot be used; empty where it can."""
    if not NAME.fullmatch(table.name) or hasattr(TomlTable, table.name):
        return "this is no name of a table: expected lower case, such as slurm"
    if table.name in taken:
        return "there is such a key already"
    if not issubclass(table.model, TomlTable):
        return "its model is no TomlTable"
    has_source = isinstance(table, FeatureTable) and table.job_source is not None
    if table.required and not has_source:
        return f"its key {table.required[0]} has no default"
    return ""


def read_tables(
    tables: Mapping[str, FeatureTable], top: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """What the tables of features mean, by name; one that is not there is read as an empty one. One
    that its feature cannot read is left out; where it is written, that is a problem.

    :param top: the keys at the top that the user has written, each valid by itself.
    """
    meanings: dict[str, Any] = {}
    for name, table in tables.items():
        written = top.get(name, {})
        with blaming("job_file", name, name, problems, partial(bool, written)):
            meanings[name] = table.read(written, problems)
    return meanings


def read_job_source(
    tables: Mapping[str, FeatureTable], top: Mapping[str, Any], entries: int, problems: Problems
) -> tuple[str, JobSource | None]:
    """The table that means which jobs there are, by its name, and the job source that it means. An
    empty name: no such table is written. None: the jobs are those that are declared.

    Several tables may mean one source together; then the name is that of the first one.

    :param top: the keys at the top that the user has written, each valid by itself.
    :param entries: number of ``[[jobs]]`` tables.
    """
    first = ""
    made_by: Any = None
    found: JobSource | None = None
    for name, table in tables.items():
        if name not in top or table.job_source in (None, made_by):
            continue
        if made_by is not None:
            problems.add(name, f"excludes [{first}]: each of them decides which jobs there are")
            continue
        first = name
        made_by = table.job_source
        with blaming("job_file", name, name, problems, lambda: True):
            found = made_by(top, entries, problems)
    return first, found


@contextlib.contextmanager
def blaming(
    point: Literal["job_file", "job_tables"],
    name: str,
    where: str,
    problems: Problems,
    is_written: Callable[[], bool],
) -> Iterator[None]:
    """In the block, a feature reads a table: an error is a problem of what is written, or else of
    the feature.

    :param point: where the feature has added the table.
    :param where: its place in the job file.
    :param is_written: whether the user has written it; asked only after an error.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if is_written():
            problems.add(where, f"the feature of this table cannot read it: {reason}")
        else:
            shown = f"[{name}]" if point == "job_file" else f"{name} of jobs"
            note_problem(owner(point, name), f"cannot read an empty table {shown}", reason)


def read_kept_tables(
    tables: Mapping[str, FeatureTable], top: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """As :func:`read_tables`, for a job file that has been read before; it may have tables of a
    feature that is gone.

    :raises ValueError: a value is not valid any more.
    """
    checked = {
        name: table.model.model_validate(top[name]).model_dump(exclude_unset=True)
        for name, table in tables.items()
        if name in top
    }
    return read_tables(tables, checked, problems)
