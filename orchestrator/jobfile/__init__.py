"""The job file: TOML → :class:`Experiment`. All validation of user input happens here, once.

:func:`load` reads a file, :func:`from_mapping` takes the content of one. All problems of a file are
found before anything is raised, each reported once, at the place where it was written. Layers of
settings are in :mod:`orchestrator.jobfile.expand`.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import Table
from orchestrator.core.errors import Problem, SpecError, UsageError
from orchestrator.core.job import Job
from orchestrator.core.robot_sources import robot_suffixes
from orchestrator.jobfile.expand import Expansion, JobTemplate
from orchestrator.jobfile.job_source import JobSource
from orchestrator.jobfile.json_schema import json_schema
from orchestrator.jobfile.robot_arguments import RobotArgument
from orchestrator.jobfile.toml_models import FEATURE_TABLES
from orchestrator.jobfile.validation import as_plain, check
from orchestrator.keys.feature_tables import read_job_source, read_tables
from orchestrator.keys.names import safe_name
from orchestrator.keys.problems import Problems, quoted, suggestion

__all__ = [
    "Experiment",
    "Order",
    "from_declaration",
    "from_mapping",
    "json_schema",
    "load",
    "parse_override",
    "safe_name",
]

Order: TypeAlias = Literal["longest-first", "as-listed"]
NO_OVERRIDES: Table = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A job file, resolved into jobs."""

    name: str
    max_parallel: int | Literal["idle"] | None
    """Largest number of jobs at once; None: as many as the machine has cores for."""
    order: Order
    """Order of launch; ``jobs`` are in the order of the file."""
    skip_invalid: bool = False
    """Whether invalid robots and environments fail their own jobs only; otherwise nothing is
    launched."""
    tables: Table = field(default_factory=dict)
    """What tables of features mean, by name. Empty where the jobs come from no job file, such as
    those of a :class:`orchestrator.TrainingPool`."""
    warnings: Sequence[str] = ()
    """What a job source warns of."""
    jobs: tuple[Job, ...]
    """Empty where they are made as the run goes on."""
    source: str
    """The job file as the user named it, for messages."""
    text: bytes | None = None
    """The content of the job file, kept in the run directory; None: it was made from no file, or is
    resumed."""
    base: Path
    """Absolute directory to which relative paths refer."""
    resumed_by: str = ""
    """What resumes it, for messages: a clause, in which ``{run_dir}`` stands for the argument ``run_dir=…``.
    Empty: `run`, or the same call of a function."""

    overrides: Table = field(default_factory=dict)
    """Settings that were given from outside of the file."""

    job_source: JobSource | None = None
    """What makes the jobs, or decides which of them go on; None: all that are declared are trained
    to their end."""
    template: JobTemplate | None = field(default=None, repr=False)
    """What a job source makes jobs of; None where it makes none."""
    data: Table = field(default_factory=dict, repr=False)
    """The content of the job file."""

    unnamed: Mapping[Path, RobotArgument] = field(default_factory=dict)
    """Robots that were not given as files, by the temporary file that holds them: messages use
    their label."""

    def shown_xml(self, job: Job) -> Path | None:
        """The user's file, or the label of a robot that is none: ``xmls[3]``."""
        robot = None if job.xml_source is None else self.unnamed.get(job.xml_source)
        return job.xml_source if robot is None else Path(robot.label)

    @property
    def job_maker(self) -> JobSource | None:
        """What makes its jobs as its run goes on; None where all are declared."""
        source = self.job_source
        return source if source is not None and source.makes_jobs else None

    @property
    def makes_jobs(self) -> bool:
        """Whether its jobs are made as its run goes on."""
        return self.job_maker is not None

    @property
    def jobs_to_examine(self) -> tuple[Job, ...]:
        """The jobs whose robots are examined before anything is launched; where jobs are made as
        the run goes on, examples of them, of which the first one has to be valid.
        """
        return self.jobs if self.job_source is None else self.job_source.jobs_to_examine(self)

    @property
    def declaration(self) -> Table:
        """Arguments of :func:`from_mapping` that make the same experiment again, in JSON types."""
        return _in_json_types(
            {
                "data": self.data,
                "source": self.source,
                "base": self.base,
                "overrides": self.overrides,
                "skip_invalid": self.skip_invalid,
            }
        )

    @property
    def declared_by(self) -> Table:
        """How to make the same jobs again: for ``provenance.json``."""
        return _in_json_types(
            {
                "job_file": self.base / Path(self.source).name,
                "overrides": self.overrides,
                "skip_invalid": self.skip_invalid,
            }
        )

    @property
    def directory_name(self) -> str:
        """``name`` as a safe directory name."""
        return safe_name(self.name)


def _in_json_types(values: Table) -> Table:
    """``values``, with the text of what JSON does not have, such as dates and paths."""
    read: Table = json.loads(json.dumps(as_plain(values), default=str))
    return read


def load(path: Path, *, overrides: Table = NO_OVERRIDES, skip_invalid: bool = False) -> Experiment:
    """Read a job file.

    :param overrides: dotted keys of ``[defaults]`` and their values for all jobs, as from
        :func:`parse_override`.
    :param skip_invalid: as ``on_invalid = "skip"`` in the file.
    :raises SpecError: with every problem of the file.
    """
    source = str(path)
    try:
        content = path.read_bytes()  # once: it may be a pipe
        # Some editors write a byte order mark, which TOML does not allow.
        data = tomllib.loads(content.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        problem = Problem(where="", message=_read_error(path, error))
        raise SpecError(source, [problem]) from None
    found = from_mapping(
        data, source=source, base=path.parent, overrides=overrides, skip_invalid=skip_invalid
    )
    return replace(found, text=content)


def from_mapping(
    data: Table,
    *,
    source: str,
    base: Path,
    overrides: Table = NO_OVERRIDES,
    skip_invalid: bool = False,
) -> Experiment:
    """Resolve the content of a job file.

    :param source: name of the file in messages.
    :param base: directory to which relative paths refer.
    :raises SpecError: with every problem found, sorted by place.
    """
    base = base.resolve()
    problems = Problems()
    try:
        checked = check(data, problems)
    except RecursionError:
        problem = Problem(where="", message="is nested too deeply to be a job file")
        raise SpecError(source, [problem]) from None
    top = checked.top
    skip_invalid = skip_invalid or top.get("on_invalid") == "skip"
    of_features = {} if problems else top  # they read what is valid
    tables = read_tables(FEATURE_TABLES, of_features, problems)
    job_source = read_job_source(FEATURE_TABLES, of_features, len(checked.entries), problems)
    makes_jobs = job_source is not None and job_source.makes_jobs
    expansion = Expansion(
        checked,
        base=base,
        overrides=overrides,
        skip_invalid=skip_invalid,
        problems=problems,
        maker=job_source if makes_jobs else None,
    )
    warnings: Iterable[str] = ()
    if job_source is not None:
        job_source = job_source.settled(expansion.jobs, expansion.template)
        warnings = job_source.check_jobs(expansion.jobs, expansion.template, problems)
    if problems:
        raise SpecError(source, problems.in_order())
    max_parallel = top.get("max_parallel", "auto")
    return Experiment(
        name=top["name"],
        max_parallel=None if max_parallel == "auto" else max_parallel,
        order=top.get("order", "longest-first"),
        skip_invalid=skip_invalid,
        tables=tables,
        warnings=tuple(warnings),
        jobs=() if makes_jobs else tuple(expansion.jobs),
        job_source=job_source,
        template=expansion.template,
        data=data,
        source=source,
        base=base,
        overrides=overrides,
    )


def from_declaration(declaration: Table) -> Experiment:
    """Return the experiment whose :attr:`Experiment.declaration` was written into a run directory.

    :raises SpecError: what it refers to is gone, such as its robot.
    :raises ValueError, KeyError, TypeError: it is no declaration.
    """
    return from_mapping(
        declaration["data"],
        source=declaration["source"],
        base=Path(declaration["base"]),
        overrides=declaration["overrides"],
        skip_invalid=declaration["skip_invalid"],
    )


def parse_override(text: str) -> tuple[str, Any]:
    """``"ppo.n_steps=512"`` → ``("ppo.n_steps", 512)``: the value is read as TOML, or taken as text
    if that fails.

    :raises UsageError: without a key and an equals sign.
    """
    key, equals, written = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise UsageError(
            f"--set {text}: expected key=value, for example --set total_timesteps=100_000"
        )
    try:
        return key, tomllib.loads(f"value = {written}")["value"]
    except (ValueError, RecursionError):
        return key, written


def _read_error(path: Path, error: Exception) -> str:
    """Return the message for an error in reading or parsing a file."""
    match error:
        case ValueError() if path.suffix.lower() in (".mjcf", *robot_suffixes()):
            command = f"orchestrator init {shlex.quote(str(path))}"
            return f"this is a robot, not a job file; `{command}` writes a job file"
        case FileNotFoundError():
            near = suggestion(path.name, [other.name for other in path.parent.glob("*.toml")])
            meant = f"; did you mean {quoted(str(path.with_name(near)))}?" if near else ""
            return f"no such file{meant}"
        case OSError():
            return f"cannot be read: {error.strerror}"
    return f"is not valid TOML: {error}"
