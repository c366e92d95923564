"""What Slurm's accounting says of the pilots, beside what their supervisor has measured:
``slurm/accounting.csv``.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.text import count
from orchestrator.features.slurm.allocation import number_of, seconds_of
from orchestrator.features.slurm.command_runner import SlurmCommand

FILE = "accounting.csv"
FORMAT = "JobID,State,NodeList,Submit,Start,End,ElapsedRaw,AllocCPUS,TotalCPU,MaxRSS"
PATIENCE_S = 10.0
"""For ``sacct`` and for the ends of pilots together: its database learns of those some seconds
later."""
UNITS_MIB = {"": 1 / 1024 / 1024, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotAccount:
    """A line of the file. All but the last two columns are Slurm's figures."""

    task: str
    state: str
    nodes: str
    submitted: str
    """In the time zone of the cluster, as ``sacct`` writes it."""
    started: str
    ended: str
    allocated_core_s: float
    cpu_s: float
    max_rss_mib: float | None
    """None where Slurm does not measure it."""
    attempts: int
    """Attempts of jobs in it."""
    attempts_core_s: float
    """Seconds times cores that they had."""

    @property
    def is_over(self) -> bool:
        return self.ended not in ("", "Unknown", "None")


def collect(tasks: Collection[str], measured: Mapping[str, Sequence[float]]) -> list[PilotAccount]:
    """The pilots as ``sacct`` knows them; none without accounting.

    :param measured: task → the core seconds of each attempt there.
    """
    deadline = time.monotonic() + PATIENCE_S
    rows = list[PilotAccount]()
    jobs = ",".join(sorted({task.partition("_")[0] for task in tasks}))
    while jobs:
        options = (f"--jobs={jobs}", "--parsable2", "--noheader", f"--format={FORMAT}")
        answer = SlurmCommand("sacct", *options, patience_s=deadline - time.monotonic()).wait()
        rows = []
        if answer.returncode == 0:
            rows = [row for row in read(answer.output, measured) if row.task in tasks]
        if not rows or all(row.is_over for row in rows) or time.monotonic() > deadline - 2.0:
            break
        time.sleep(1.0)
    return rows


def read(output: str, measured: Mapping[str, Sequence[float]]) -> list[PilotAccount]:
    """The lines of ``sacct``: one for each task, and after it one for each of its steps, which have
    the memory.
    """
    lines = [
        line.split("|") for line in output.splitlines() if line.count("|") == FORMAT.count(",")
    ]
    rss_mib: dict[str, float] = {}
    for task, *_, rss in lines:
        if (amount := _mib(rss)) is not None:
            name = task.partition(".")[0]
            rss_mib[name] = max(amount, rss_mib.get(name, 0.0))
    return [
        PilotAccount(
            task=task,
            state=state,
            nodes=nodes,
            submitted=submitted,
            started=started,
            ended=ended,
            allocated_core_s=number_of(elapsed) * number_of(cpus),
            cpu_s=seconds_of(cpu) or 0.0,
            max_rss_mib=rss_mib.get(task),
            attempts=len(measured.get(task, ())),
            attempts_core_s=round(math.fsum(measured.get(task, ())), 1),
        )
        for task, state, nodes, submitted, started, ended, elapsed, cpus, cpu, _ in lines
        if "." not in task
    ]


def write(folder: Path, rows: Iterable[PilotAccount]) -> None:
    """Add the pilots to those of earlier supervisors, unless their lines are damaged.

    :raises OSError: the file cannot be written.
    """
    names = [field.name for field in fields(PilotAccount)]
    lines = dict[str, Sequence[object]]()
    with (
        contextlib.suppress(FileNotFoundError, csv.Error),  # there were none, or they are damaged
        (folder / FILE).open(newline="", encoding="utf-8", errors="replace") as file,
    ):
        lines = {
            line[0]: line for line in csv.reader(file) if len(line) == len(names) and line != names
        }
    lines |= {row.task: [getattr(row, name) for name in names] for row in rows}
    text = io.StringIO(newline="")
    csv.writer(text).writerows([names, *lines.values()])
    write_whole(folder / FILE, text.getvalue(), durable=False)


def sentence(rows: Sequence[PilotAccount], path: Path) -> str:
    """What the pilots have cost. :param path: of the file that says it of each."""
    allocated = sum(row.allocated_core_s for row in rows)
    used = sum(row.cpu_s for row in rows)
    ours = sum(row.attempts_core_s for row in rows)
    slurms = f"{_hours(allocated)} core-hours allocated, {_hours(used)} used by Slurm's account"
    return f"{count(len(rows), 'pilot')}: {slurms}, {_hours(ours)} held by jobs ({path})"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}" if seconds >= 3600 else f"{round(seconds / 3600, 3):g}"


def _mib(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    return None if match is None else round(float(match[1]) * UNITS_MIB[match[2]], 1)
