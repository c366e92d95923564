"""``init --set``: what the files of robots lack, for all robots of the job file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import absolute
from orchestrator.core.text import alternatives
from orchestrator.jobfile import parse_override
from orchestrator.jobfile.job_table_rules import format_tables, robot_settings
from orchestrator.jobfile.validation import check_one
from orchestrator.keys.problems import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class InitSettings:
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """For ``[defaults]`` of the job file, by dotted key."""
    of_formats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What makes MJCF of robots, by the name of their format."""


def parse_settings(texts: Sequence[str], target: Path) -> InitSettings:
    """Of ``["urdf.actuators=position"]``.

    :param target: the job file, to whose folder paths are relative.
    :raises UsageError: with what would be right.
    """
    defaults: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, value = parse_override(text)
        name, _, rest = key.partition(".")
        if name not in format_tables() or not rest:
            known = alternatives(f"{one}.KEY" for one in format_tables())
            raise UsageError(
                f"--set {text}: init sets only what the files of robots lack ({known}), since that decides what can be "
                "trained; write other keys into the job file"
            )
        problems = Problems()
        checked = check_one(key, value, key, problems)
        if checked is None:
            problem = problems.in_order()[0]
            raise UsageError(f"--set {text}: {problem.where}: {problem.message}")
        defaults[key] = value
        tables.setdefault(name, {}).update(checked[name])
    base = absolute(target).parent
    of_formats = {name: robot_settings(tables, format_tables()[name], base) for name in tables}
    return InitSettings(defaults=defaults, of_formats=of_formats)
