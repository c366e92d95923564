"""The job file: TOML → :class:`Experiment`. All validation of user input happens here, once.

:func:`load` reads a file, :func:`from_mapping` takes the content of one. A job's settings are
layers, each of which overrides the one before, tables key by key: the built-in defaults, the
preset, ``[defaults]``, the job's own table, ``--set`` (``overrides``), and one point of the job's
matrix. So ``--set`` wins over what is written, except over a matrix.

All problems of a file are found before anything is raised, each reported once, at the place where
it was written.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from orchestrator.core.errors import Problem, SpecError, UsageError
from orchestrator.core.files.regular_files import read_up_to
from orchestrator.core.job import Job
from orchestrator.core.paths import DIRECTORY_REMOVED, current_directory
from orchestrator.core.robot_sources import robot_formats, robot_suffixes
from orchestrator.jobfile.expand import JobTemplate, expand
from orchestrator.jobfile.job_source import JobSource
from orchestrator.jobfile.json_schema import json_schema
from orchestrator.jobfile.robot_arguments import RobotArgument
from orchestrator.jobfile.toml_models import FEATURE_TABLES, Settings
from orchestrator.jobfile.validation import Checked, as_plain, check, not_unicode
from orchestrator.keys.feature_tables import read_job_source, read_tables
from orchestrator.keys.names import safe_name
from orchestrator.keys.problems import Problems, quoted, suggestion

__all__ = [
    "Experiment",
    "Order",
    "from_mapping",
    "is_job_key",
    "json_schema",
    "load",
    "parse_override",
    "safe_name",
]

LARGEST_BYTES = 64 << 20
"""Of a job file. A larger one is a mistake, such as a device that has no end."""
Order: TypeAlias = Literal["longest-first", "as-listed"]
NO_OVERRIDES: Mapping[str, Any] = MappingProxyType({})


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
    tables: Mapping[str, Any] = field(default_factory=dict)
    """What tables of features mean, by name. Empty where the jobs come from no job file, such as
    those of a :class:`orchestrator.TrainingPool`."""
    warnings: Sequence[str] = ()
    """Settings without effect, and trainings that are too short to learn."""
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

    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings that were given from outside of the file."""

    job_source: JobSource | None = None
    """What makes the jobs, or decides which of them go on; None: all that are declared are trained
    to their end."""
    source_table: str = ""
    """The table that means :attr:`job_source`; empty where none is written that could."""
    template: JobTemplate | None = field(default=None, repr=False)
    """What a job source makes jobs of; None where it makes none."""
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)
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
    def declaration(self) -> Mapping[str, Any]:
        """Arguments of :func:`from_mapping` that make the same experiment again, in JSON types."""
        options = {
            "source": self.source,
            "overrides": self.overrides,
            "skip_invalid": self.skip_invalid,
        }
        return _in_json_types({"data": self.data, "base": self.base, "options": options})

    @property
    def declared_by(self) -> Mapping[str, Any]:
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


def _in_json_types(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """``values``, with the text of what JSON does not have, such as dates and paths."""
    read: Mapping[str, Any] = json.loads(json.dumps(as_plain(values), default=str))
    return read


def load(
    path: Path, *, overrides: Mapping[str, Any] = NO_OVERRIDES, skip_invalid: bool = False
) -> Experiment:
    """Read a job file.

    :param overrides: dotted keys of ``[defaults]`` and their values for all jobs, as from
        :func:`parse_override`.
    :param skip_invalid: as ``on_invalid = "skip"`` in the file.
    :raises SpecError: with every problem of the file.
    """
    source = str(path)
    text = ""
    try:
        with path.open("rb") as file:
            content = read_up_to(file, LARGEST_BYTES + 1)  # once: it may be a pipe
        if len(content) > LARGEST_BYTES:
            raise ValueError(f"it has more than {LARGEST_BYTES >> 20} MiB")
        # Some editors write a byte order mark, which TOML does not allow.
        text = content.decode("utf-8-sig")
        data = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        where, message = _read_error(path, text, error)
        raise SpecError(source, [Problem(where=where, message=message)]) from None
    found = from_mapping(
        data, source=source, base=path.parent, overrides=overrides, skip_invalid=skip_invalid
    )
    return replace(found, text=content)


def from_mapping(
    data: Mapping[str, Any],
    *,
    source: str,
    base: Path,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
    skip_invalid: bool = False,
) -> Experiment:
    """Resolve the content of a job file.

    :param source: name of the file in messages.
    :param base: directory to which relative paths refer.
    :raises SpecError: with every problem found, sorted by place.
    """
    base = base.resolve()
    problems = Problems()
    checked = _check(data, source, problems)
    skip_invalid = skip_invalid or checked.top.get("on_invalid") == "skip"
    tables = read_tables(FEATURE_TABLES, checked.top, problems)
    source_table, job_source = read_job_source(
        FEATURE_TABLES, checked.top, len(checked.entries), problems
    )
    makes_jobs = job_source is not None and job_source.makes_jobs
    expansion = expand(
        checked,
        base=base,
        overrides=overrides,
        skip_invalid=skip_invalid,
        problems=problems,
        maker=job_source if makes_jobs else None,
    )
    warnings = list(expansion.warnings)
    if job_source is not None:
        job_source = job_source.settled(expansion.jobs, expansion.template)
        warnings += job_source.check_jobs(expansion.jobs, expansion.template, problems)
    if problems:
        raise SpecError(source, problems.in_order())
    return Experiment(
        name=checked.top["name"],
        max_parallel=_max_parallel(checked.top),
        order=checked.top.get("order", "longest-first"),
        skip_invalid=skip_invalid,
        tables=tables,
        warnings=tuple(warnings),
        jobs=() if makes_jobs else tuple(expansion.jobs),
        job_source=job_source,
        source_table=source_table,
        template=expansion.template,
        data=data,
        source=source,
        base=base,
        overrides=overrides,
    )


def _check(data: Mapping[str, Any], source: str, problems: Problems) -> Checked:
    """The content with all that is valid in it.

    :param problems: receives every other problem.
    :raises SpecError: it cannot be checked at all.
    """
    try:
        return check(data, problems)
    except RecursionError:
        message = "is nested too deeply to be a job file"
    except UnicodeEncodeError as error:
        message = not_unicode(error)
    raise SpecError(source, [Problem(where="", message=message)])


def _max_parallel(top: Mapping[str, Any]) -> int | Literal["idle"] | None:
    """What :attr:`Experiment.max_parallel` is for the top level of a job file."""
    written: int | Literal["auto", "idle"] | None = top.get("max_parallel")
    return None if written == "auto" else written


def is_job_key(name: str) -> bool:
    """Whether jobs have this key. One of a feature is there only with the feature."""
    return name in Settings.model_fields


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
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):
        return key, written
    return key, parsed["value"] if parsed.keys() == {"value"} else written


def _read_error(path: Path, text: str, error: Exception) -> tuple[str, str]:
    """Place and message of an error in reading or parsing a file."""
    match error:
        case ValueError() if _is_robot(path, text):
            command = f"orchestrator init {shlex.quote(str(path))}"
            return "", f"this is a robot, not a job file; `{command}` writes a job file"
        case UnicodeDecodeError():
            line = error.object[: error.start].count(b"\n") + 1
            return f"line {line}", f"is not UTF-8 text ({error.reason}); save the file as UTF-8"
        case tomllib.TOMLDecodeError():
            return _syntax_error(text, str(error))
        case IsADirectoryError():
            return "", "is a directory, not a job file"
        case FileNotFoundError():
            return "", _missing_file(path)
        case OSError():
            return "", f"cannot be read: {error.strerror}"
        case _:  # numbers of thousands of digits, endless brackets
            return "", f"is not a job file: {error}"


def _is_robot(path: Path, text: str) -> bool:
    if path.suffix.lower() in robot_suffixes():
        return True
    roots = ("mujoco", *(one.root for one in robot_formats()))
    beginnings = (*(f"<{root}" for root in roots), "<?xml", "<!--")
    return text.lstrip().startswith(beginnings)


def _syntax_error(text: str, message: str) -> tuple[str, str]:
    match = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message, re.DOTALL)
    if match is None:
        return "", f"is not valid TOML: {message}"
    reason, number, column = match.groups()
    message = f"not valid TOML, {reason.lower()}"
    from_line = text.splitlines()[int(number) - 1 :]  # empty where the error is the end of the file
    source_line = from_line[0].strip()[:80] if from_line else ""
    if source_line:
        message += f": {source_line}"
    return f"line {number}, column {column}", message


def _missing_file(path: Path) -> str:
    if not path.is_absolute() and current_directory() is None:
        return DIRECTORY_REMOVED
    if not path.parent.is_dir():
        return "no such file, and its folder does not exist"
    what = "no such file" if path.suffix == ".toml" else "no such file or directory"
    suggested = suggestion(path.name, [other.name for other in path.parent.glob("*.toml")])
    if suggested is None:
        return what
    return f"{what}; did you mean {quoted(str(path.with_name(suggested)))}?"
