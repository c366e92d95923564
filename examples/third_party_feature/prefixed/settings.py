"""The table ``[prefixed]`` of a job file. It is read while :mod:`orchestrator.jobfile` is imported,
so that this module imports nothing of that.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.keys.feature_tables import FeatureTable
from orchestrator.keys.problems import Problems
from orchestrator.keys.value_types import TomlTable, key


class PrefixedTable(TomlTable):
    """What starts the workers of --executor prefixed."""

    command: list[str] | None = key(
        None, "Program and arguments, before those of the worker.", ["nice", "-n", "5"]
    )
    events: bool = key(False, "Write what happens to RUN_DIR/events.jsonl, a line each.", True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixed:
    """What the table means."""

    command: tuple[str, ...] = ()
    """Empty where the job file has none."""
    events: bool = False


def read(table: Mapping[str, Any], problems: Problems) -> Prefixed:
    command = tuple(table.get("command") or ())
    if command and shutil.which(command[0]) is None:
        problems.add("prefixed.command", f'"{command[0]}" is no program on PATH; install it')
    return Prefixed(command=command, events=table.get("events", False))


TABLE = FeatureTable(
    name="prefixed", about="What starts the workers.", model=PrefixedTable, read=read
)
