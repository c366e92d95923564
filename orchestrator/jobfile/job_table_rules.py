"""What tables of jobs that features add mean, and when they are wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.decoding import Table
from orchestrator.core.job_parts import job_parts
from orchestrator.core.robot_sources import RobotFormat, mjcf_format, robot_formats
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.toml_models import JOB_TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTableRules:
    """The rules of one table. ``merged`` are the settings of a job, each key valid by itself."""

    settings: Callable[[Table], Any]
    """Returns what the spec of a job has of ``merged``; the defaults where that is nothing. Of
    settings that a check refuses it does not matter. The table of a format of robots is asked only
    for jobs with such a robot."""
    check: Callable[[MergedJob], None] = lambda _: None
    """Reports what is wrong with a job."""
    robot_settings: Callable[[Table, Path], Table] | None = None
    """Of the table of a format of robots: returns what the module that makes MJCF of them is told
    (:attr:`.ExaminationRequest.robot_settings`). Paths in the table are relative to the folder. None:
    the table as it is."""
    is_for_tasks: bool = False
    """Whether jobs with an environment of their own have no use for it."""


@functools.cache
def table_rules() -> Mapping[str, JobTableRules]:
    """Return the rules by the name of the table."""
    return {name: table.rules() for name, table in JOB_TABLES.items()}


@functools.cache
def format_tables() -> Mapping[str, RobotFormat | None]:
    """Return the tables of jobs that are for robots of a format, by name; the format is None for an
    MJCF.
    """
    tables: dict[str, RobotFormat | None] = {one.name: one for one in robot_formats()}
    if (mjcf := mjcf_format()) is not None:
        tables[mjcf.name] = None
    return {name: one for name, one in tables.items() if name in JOB_TABLES}


def parts_of(merged: Table, robot: RobotFormat | None) -> dict[str, Any]:
    """Return what the spec of a job has of tables of features, by name.

    :param robot: the format of its robot; None for an MJCF.
    """
    parts: dict[str, Any] = {}
    for name, rules in table_rules().items():
        if format_tables().get(name, robot) is robot:  # others are for other robots
            settings = rules.settings(merged)
            if not job_parts()[name].is_unused(settings):
                parts[name] = settings
    return parts


def robot_settings(merged: Table, robot: RobotFormat | None, base: Path) -> Table:
    """Return what makes MJCF of a job's robot.

    :param robot: as for :func:`parts_of`.
    :param base: the folder to which paths are relative.
    """
    maker = robot or mjcf_format()
    rules = None if maker is None else table_rules().get(maker.name)
    if maker is None or rules is None:
        return {}
    if rules.robot_settings is not None:
        return rules.robot_settings(merged, base)
    settings: Table = merged[maker.name]
    return settings
