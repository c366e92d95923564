"""What ``init`` shows: what was written, what was left out and why, and the next command."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

from orchestrator.core.text import count, joined, plain, rough_duration
from orchestrator.features.authoring.init_selection import RobotJobFile

MOST_SHOWN = 20


def robots(made: RobotJobFile, target: Path) -> str:
    """The result of ``init``, in several lines."""
    tasks = Counter(str(row.task) for row in made.robots)
    number = len(made.robots)
    warned = sum(row.verdict == "warning" for row in made.robots)
    time = made.time
    lines = [
        f"{target}: {count(number, 'robot')} to train ({joined(f'{n:,} {task}' for task, n in tasks.most_common())})",
    ]
    if made.left_out:
        lines.append(f"Not trained ({len(made.left_out):,}):")
        for entry in made.left_out[:MOST_SHOWN]:
            lines.append(f"    {plain(f'{entry.what}: {entry.reason}')}")
        if len(made.left_out) > MOST_SHOWN:
            more = len(made.left_out) - MOST_SHOWN
            lines.append(f"    and {more:,} more; `orchestrator check` shows all")
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


def _next(target: Path) -> list[str]:
    command = f"orchestrator run {shlex.quote(str(target))}"
    return [f"Next: {command}    ({command} --dry-run shows the plan)"]
