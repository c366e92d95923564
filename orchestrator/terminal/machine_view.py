"""What ``list --all-users`` shows: one line per experiment of any user."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.text import count, duration, joined, plain
from orchestrator.experiment.directory.run_index import FINISHED, ORDER
from orchestrator.experiment.from_outside.machine_runs import MachineRun
from orchestrator.machine.topology import MIB
from orchestrator.terminal.jobs_table import counts_text
from orchestrator.terminal.list_view import STATE_COLOUR
from orchestrator.terminal.output import bytes_text, show_table
from orchestrator.terminal.tables import NONE, Column, number_column


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is shown, and how much is not."""

    runs: Sequence[MachineRun]
    without_words: int
    """Number of those that the filter leaves out."""
    finished: int
    """Number of those that it would show, but that have finished."""


SORTED_BY: Mapping[str, Callable[[MachineRun], Any]] = {
    "user": lambda run: run.user,
    "name": lambda run: run.facts.name,
    "cores": lambda run: -len(run.cpus),
    "load": lambda run: -(run.load or 0.0),
    "memory": lambda run: -(run.memory_mib or 0.0),
    "disk": lambda run: -(run.facts.disk_mib or 0.0),
    "eta": lambda run: math.inf if run.facts.eta_s is None else run.facts.eta_s,
}


def runs_to_list(
    runs: Sequence[MachineRun], *, is_all: bool, containing: str, sort: str | None
) -> Selection:
    """Those that run or can be resumed, or all, in order.

    :param containing: only those with each of these words in user, name, state, run directory or
        problem, in capitals or not: the rule of the live page.
    :param sort: a key of :data:`SORTED_BY`; None: by state, then by user and name.
    """
    words = containing.lower().split()
    fitting = [run for run in runs if all(word in _text(run).lower() for word in words)]
    shown = [run for run in fitting if is_all or run.facts.state != FINISHED]
    shown.sort(key=lambda run: (ORDER.index(run.facts.state), run.user, run.facts.name))
    return Selection(
        runs=shown if sort is None else sorted(shown, key=SORTED_BY[sort]),
        without_words=len(runs) - len(fitting),
        finished=len(fitting) - len(shown),
    )


def _text(run: MachineRun) -> str:
    found = run.facts
    return " ".join((run.user, found.name, found.state, found.run_dir, found.problem))


def facts(run: MachineRun) -> dict[str, Any]:
    """The same as JSON types."""
    found = run.facts
    return {
        "user": run.user,
        "uid": run.uid,
        "name": found.name,
        "state": found.state,
        "pid": found.pid,
        "jobs": dict(found.jobs),
        "cpus": list(run.cpus),
        "load": run.load,
        "memory_mib": run.memory_mib,
        "disk_mib": found.disk_mib,
        "eta_s": found.eta_s,
        "run_dir": found.run_dir,
        "problem": found.problem or None,
    }


def show(selection: Selection) -> None:
    runs = selection.runs
    left_out = _left_out_text(selection)
    if not runs:
        print(left_out or "no experiment of any user is seen here")
        return
    cpus = {cpu for run in runs for cpu in run.cpus}
    users = {run.uid for run in runs}
    held = count(len(cpus), "CPU is held", "CPUs are held")
    text = f"{count(len(runs), 'experiment')} of {count(len(users), 'user')}; {held}"
    problems = [
        plain(f"{run.facts.run_dir}: {run.facts.problem}") for run in runs if run.facts.problem
    ]
    show_table(COLUMNS, runs, below=["", *problems, text, *([left_out] if left_out else [])])


def _left_out_text(selection: Selection) -> str:
    """How many are not shown, and what shows them; empty where all are."""
    parts = []
    if selection.without_words:
        parts.append(
            f"{count(selection.without_words, 'experiment')} without the words of --filter"
        )
    if selection.finished:
        parts.append(f"{count(selection.finished, 'experiment')} that finished (--all shows them)")
    return f"not shown: {joined(parts)}" if parts else ""


def _mib_text(mib: float | None) -> str:
    return NONE if mib is None else bytes_text(mib * MIB)


COLUMNS: Sequence[Column[MachineRun]] = (
    Column("experiment", lambda run: run.facts.name or NONE),
    Column("user", lambda run: run.user),
    Column(
        "state",
        lambda run: run.facts.state,
        style=lambda run: STATE_COLOUR.get(run.facts.state, ""),
    ),
    Column("jobs", lambda run: counts_text(Counter(run.facts.jobs)) or NONE, rank=2),
    number_column("cores", lambda run: str(len(run.cpus)) if run.cpus else NONE, rank=1),
    number_column("load", lambda run: NONE if run.load is None else f"{run.load:.1f}", rank=1),
    number_column("memory", lambda run: _mib_text(run.memory_mib), rank=1),
    number_column("disk", lambda run: _mib_text(run.facts.disk_mib), rank=3),
    number_column("ETA", lambda run: duration(run.facts.eta_s), rank=1),
    Column("run directory", lambda run: run.facts.run_dir, rank=2, is_folded=True),
)
