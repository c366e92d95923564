"""What ``init`` and ``import-zoo`` show: what was written, what was left out and why, and the next
command.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.core.text import count, joined, plain, rough_duration
from orchestrator.features.authoring.init_selection import RobotJobFile
from orchestrator.features.authoring.zoo_import import ZooJobFile
from orchestrator.jobfile.job_file_text import LeftOut

MOST_SHOWN = 20


def robots(made: RobotJobFile, target: Path) -> str:
    """The result of ``init``, in several lines."""
    tasks = Counter(str(row.task) for row in made.robots)
    number = len(made.robots)
    warned = sum(row.verdict == "warning" for row in made.robots)
    time = made.time
    lines = [
        f"{target}: {count(number, 'robot')} to train ({joined(f'{n:,} {task}' for task, n in tasks.most_common())})",
        *_left_out("Not trained", made.left_out, "`orchestrator check` shows all"),
    ]
    if made.left_out:
        again = "call `init` with --force, which replaces the job file and your edits in it"
        lines.append(
            f"To train one of these, repair it, and {again}; or add a [[jobs]] table for it."
        )
    if warned:
        lines.append(
            f"{count(warned, 'robot has', 'robots have')} warnings, which `orchestrator check` shows."
        )
    lines.append(
        f"Training will take about {rough_duration(time.seconds)} on this machine when it is idle, "
        f"{count(time.jobs_at_once, 'robot')} at a time. This is an estimate from the measured speed of the physics."
    )
    return "\n".join([*lines, *_next(target)])


def zoo(made: ZooJobFile, target: Path) -> str:
    """The result of ``import-zoo``, in several lines."""
    comments = f"comments in {target} name all"
    lines = [
        f"{target}: {count(made.jobs, 'job')} of {made.algo}",
        *_left_out("Not imported", made.entries_left_out, comments),
        *_left_out("Left out of jobs, or changed", made.changes, comments),
    ]
    if made.newer:
        jobs = count(made.newer, "job has", "jobs have")
        lines.append(
            f"{jobs} version 5 of the environment in place of an earlier one, with small differences."
        )
    return "\n".join([*lines, *_next(target)])


def _left_out(heading: str, entries: Sequence[LeftOut], where: str) -> Iterator[str]:
    """:param where: what names those that are not shown here."""
    if entries:
        yield f"{heading} ({len(entries):,}):"
        yield from (
            f"    {plain(f'{entry.what}: {entry.reason}')}" for entry in entries[:MOST_SHOWN]
        )
        if len(entries) > MOST_SHOWN:
            yield f"    and {len(entries) - MOST_SHOWN:,} more; {where}"


def _next(target: Path) -> list[str]:
    command = f"orchestrator run {shlex.quote(str(target))}"
    return [f"Next: {command}    ({command} --dry-run shows the plan)"]
