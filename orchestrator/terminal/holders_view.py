"""What ``list --all-users`` shows: one line for each run that holds CPUs of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.text import cpu_text
from orchestrator.machine.cpu_locks import Holder
from orchestrator.terminal.output import show_table

HoldingRun: TypeAlias = Mapping[str, Any]
"""A process that holds CPUs, with its jobs, in JSON types."""


def by_run(holders: Sequence[Holder]) -> list[HoldingRun]:
    """Group holders by user and process."""
    runs: dict[tuple[int, int, str], list[Holder]] = {}
    for holder in sorted(holders, key=lambda one: (one.uid, one.pid, one.run_dir)):
        runs.setdefault((holder.uid, holder.pid, holder.run_dir), []).append(holder)
    return [
        {
            "name": found[0].experiment,
            "user": found[0].user,
            "uid": uid,
            "cpus": sorted({holder.cpu for holder in found}),
            "jobs": sorted({holder.job_id for holder in found if holder.job_id}),
            "since": min(holder.since for holder in found),
            "pid": pid,
            "run_dir": run_dir,
        }
        for (uid, pid, run_dir), found in runs.items()
    ]


def show(runs: Sequence[HoldingRun]) -> None:
    if runs:
        show_table(COLUMNS, runs)
    else:
        print("no experiment of any user holds CPUs of this machine")


COLUMNS: Sequence[Column[HoldingRun]] = (
    Column("experiment", lambda run: run["name"] or NONE),
    Column("user", lambda run: run["user"] or NONE),
    Column("holds", lambda run: cpu_text(run["cpus"]), rank=1),
    number_column("jobs", lambda run: str(len(run["jobs"])), rank=3),
    number_column("pid", lambda run: str(run["pid"]), rank=2),
    Column("run directory", lambda run: run["run_dir"] or NONE, is_folded=True),
)
