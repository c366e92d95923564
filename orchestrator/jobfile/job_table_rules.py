"""What tables of jobs that features add mean, and when they are wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.job_parts import job_parts
from orchestrator.core.numbers.changing_numbers import (
    ChangingNumber,
    Stages,
    changing_numbers,
    parse_number,
)
from orchestrator.core.numbers.distributions import parse_distribution
from orchestrator.core.numbers.terrain import TERRAIN
from orchestrator.core.robot_sources import (
    MJCF,
    MJCF_SUFFIX,
    RobotFormat,
    mjcf_format,
    robot_formats,
)
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.model_edit_keys import flat
from orchestrator.jobfile.toml_models import JOB_TABLES
from orchestrator.jobfile.validation import Layer, Report
from orchestrator.keys.problems import Problems


def _nothing(*_: Any) -> None:
    """In place of a check that a table does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTableRules:
    """The rules of one table. ``merged`` are the settings of a job, each key valid by itself."""

    settings: Callable[[Mapping[str, Any]], Any]
    """What the spec of a job has of ``merged``; the defaults where that is nothing. Of settings that
    a check refuses it does not matter. The table of a format of robots is asked only for jobs with
    such a robot."""
    check: Callable[[Mapping[str, Any], Sequence[Layer], Report], None] = _nothing
    """Checks ``merged``. The layers are those of the job itself: what is in ``[defaults]`` may be for
    other jobs."""
    reads: frozenset[str] = frozenset()
    """The keys that the check reads besides the table: it is not called where one is invalid."""
    check_spec: Callable[[WorkerSpec, str, Problems], None] = _nothing
    """Checks what only the whole of a spec shows; the text is the place of its job."""
    robot_settings: Callable[[Mapping[str, Any], Path], Mapping[str, Any]] | None = None
    """Of the table of a format of robots: what the module that makes MJCF of them is told
    (:attr:`.ExaminationRequest.robot_settings`). Paths in the table are relative to the folder. None:
    the table as it is."""
    is_for_tasks: bool = False
    """Whether jobs with an environment of their own have no use for it."""
    begins_stages: bool = False
    """Whether it says when the stages of numbers begin, such as ``"stages(0, 1)"``. Where no table
    does, such numbers are refused."""


@functools.cache
def table_rules() -> Mapping[str, JobTableRules]:
    """By the name of the table."""
    return {name: table.rules() for name, table in JOB_TABLES.items()}


def format_tables() -> Mapping[str, RobotFormat | None]:
    """The tables of jobs that are for robots of a format, by name; the format is None for an MJCF."""
    tables: dict[str, RobotFormat | None] = {one.name: one for one in robot_formats()}
    mjcf = mjcf_format()
    if mjcf is not None:
        tables[mjcf.name] = None
    return {name: one for name, one in tables.items() if name in JOB_TABLES}


def parts_of(merged: Mapping[str, Any], robot: RobotFormat | None) -> dict[str, Any]:
    """What the spec of a job has of tables of features, by name.

    :param robot: the format of its robot; None for an MJCF.
    """
    parts: dict[str, Any] = {}
    formats = format_tables()
    for name, rules in table_rules().items():
        if name in formats and formats[name] is not robot:  # it is of other robots
            continue
        settings = rules.settings(merged)
        if not job_parts()[name].is_unused(settings):
            parts[name] = settings
    return parts


def robot_settings(
    merged: Mapping[str, Any], robot: RobotFormat | None, base: Path
) -> Mapping[str, Any]:
    """What makes MJCF of a job's robot.

    :param robot: as for :func:`parts_of`.
    :param base: the folder to which paths are relative.
    """
    maker = robot or mjcf_format()
    rules = None if maker is None else table_rules().get(maker.name)
    if maker is None or rules is None:
        return {}
    if rules.robot_settings is not None:
        return rules.robot_settings(merged, base)
    settings: Mapping[str, Any] = merged[maker.name]
    return settings


def check_format_tables(job: MergedJob) -> None:
    """Check that a job has no table of its own for robots of another format."""
    for name, robot in format_tables().items():
        if job.sets(name) and job.are_valid("xml", name) and robot not in job.formats:
            what = MJCF if robot is None else robot.with_article
            suffix = MJCF_SUFFIX if robot is None else robot.suffix
            job.report(
                [name],
                f"is for {what}, a robot whose file name ends with {suffix}; this job has none",
            )


def check_tables_of_features(job: MergedJob) -> None:
    """Check the tables of a job."""
    for name, rules in table_rules().items():
        if job.are_valid(name, *rules.reads):
            rules.check(job.settings, job.own, job.report)
    if "task" in job.settings and job.are_valid("task_options", "randomize"):
        _check_stages_begin(job)


def check_specs_of_features(spec: WorkerSpec, where: str, problems: Problems) -> None:
    """Check what only the whole of a spec shows."""
    for rules in table_rules().values():
        rules.check_spec(spec, where, problems)


def _check_stages_begin(job: MergedJob) -> None:
    """Check that something says when stages begin, where numbers of a job have them."""
    with_stages = numbers_with_stages(job.settings)
    if with_stages and not any(rules.begins_stages for rules in table_rules().values()):
        message = (
            f"has {with_stages[0][1]} stages, and no feature of this program begins them; "
            "expected linear(start, end[, fraction])"
        )
        job.report([dotted for dotted, _ in with_stages], message)


def numbers_with_stages(merged: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The numbers of a job with a task that have stages: dotted key, and how many."""
    numbers: list[tuple[str, ChangingNumber]] = []
    for dotted, text in changing_numbers(merged["task_options"]):
        numbers.append((f"task_options.{dotted}", parse_number(text)))
    for dotted, distribution in flat(merged["randomize"]).items():
        if dotted == TERRAIN:
            continue
        for number in parse_distribution(distribution).changing:
            numbers.append((f"randomize.{dotted}", number))
    return [(dotted, len(one.values)) for dotted, one in numbers if isinstance(one, Stages)]
