"""What ``list --all-users`` shows: one line for each holder of CPUs of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.core.text import cpu_text
from orchestrator.machine.cpu_holders import Holder
from orchestrator.terminal.output import show_table
from orchestrator.terminal.tables import NONE, Column, number_column


def show(holders: Sequence[Holder]) -> None:
    if holders:
        show_table(COLUMNS, holders)
    else:
        print("no experiment of any user holds CPUs of this machine")


def facts(holder: Holder) -> dict[str, Any]:
    """The same as JSON types."""
    return {
        "name": holder.experiment,
        "user": holder.user,
        "uid": holder.uid,
        "cpus": sorted(holder.cpus),
        "pid": holder.pid,
        "run_dir": holder.run_dir,
    }


COLUMNS: Sequence[Column[Holder]] = (
    Column("experiment", lambda holder: holder.experiment or NONE),
    Column("user", lambda holder: holder.user),
    Column("holds", lambda holder: cpu_text(holder.cpus), rank=1),
    number_column("pid", lambda holder: str(holder.pid), rank=2),
    Column("run directory", lambda holder: holder.run_dir or NONE, is_folded=True),
)
