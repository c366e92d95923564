"""What ``list --all-users`` shows: one line for each run that holds CPUs of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.text import cpu_text
from orchestrator.machine.cpu_locks import Holder
from orchestrator.terminal.output import show_table
from orchestrator.terminal.tables import NONE, Column, number_column


@dataclass(frozen=True, slots=True)
class HoldingRun:
    """The jobs of one process that hold CPUs; never none."""

    holders: Sequence[Holder]

    @property
    def first(self) -> Holder:
        return self.holders[0]

    @property
    def cpus(self) -> list[int]:
        return sorted({holder.cpu for holder in self.holders})

    @property
    def jobs(self) -> list[str]:
        return sorted({holder.job_id for holder in self.holders if holder.job_id})


def by_run(holders: Sequence[Holder]) -> list[HoldingRun]:
    """Group holders by user and process."""
    runs: dict[tuple[int, int, str], list[Holder]] = {}
    for holder in sorted(holders, key=lambda one: (one.uid, one.pid, one.run_dir)):
        runs.setdefault((holder.uid, holder.pid, holder.run_dir), []).append(holder)
    return [HoldingRun(found) for found in runs.values()]


def show(runs: Sequence[HoldingRun]) -> None:
    if runs:
        show_table(COLUMNS, runs)
    else:
        print("no experiment of any user holds CPUs of this machine")


def facts(run: HoldingRun) -> dict[str, Any]:
    """The same as JSON types."""
    return {
        "name": run.first.experiment,
        "user": run.first.user,
        "uid": run.first.uid,
        "cpus": run.cpus,
        "jobs": run.jobs,
        "since": min(holder.since for holder in run.holders),
        "pid": run.first.pid,
        "run_dir": run.first.run_dir,
    }


COLUMNS: Sequence[Column[HoldingRun]] = (
    Column("experiment", lambda run: run.first.experiment or NONE),
    Column("user", lambda run: run.first.user or NONE),
    Column("holds", lambda run: cpu_text(run.cpus), rank=1),
    number_column("jobs", lambda run: str(len(run.jobs)), rank=3),
    number_column("pid", lambda run: str(run.first.pid), rank=2),
    Column("run directory", lambda run: run.first.run_dir or NONE, is_folded=True),
)
