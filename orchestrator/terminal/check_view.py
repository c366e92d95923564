"""What ``check`` shows: a table of robots, and below it the messages about each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.text import number_or_dash
from orchestrator.examination.robot_check import CheckVerdict, RobotCheck
from orchestrator.terminal.output import show_table

STYLE: Mapping[CheckVerdict, str] = {
    "ok": "green",
    "warning": "yellow",
    "error": "bold red",
    "fragment": "dim",
}
HASH_SHOWN = 12


def show(rows: Sequence[RobotCheck]) -> None:
    counts = Counter(row.verdict for row in rows)
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLE if counts[verdict])
    show_table(_columns(), rows, below=[*_messages(rows), Text(f"\n{len(rows)} examined: {parts}")])


def _columns() -> list[Column[RobotCheck]]:
    def figure(title: str, name: str, form: str, rank: int) -> Column[RobotCheck]:
        return number_column(title, lambda row: number_or_dash(row.figures.get(name), form), rank)

    def actuators(row: RobotCheck) -> str:
        return (
            ", ".join(f"{count} {kind}" for kind, count in row.figures.get("actuators", {}).items())
            or NONE
        )

    return [
        Column("robot", lambda row: row.path),
        Column("job", lambda row: row.job or NONE, rank=1),
        Column("verdict", lambda row: row.verdict, style=lambda row: STYLE[row.verdict]),
        Column("root", lambda row: row.figures.get("root", NONE), rank=1),
        Column("task", lambda row: row.task or NONE, rank=2),
        figure("nq", "nq", "d", 3),
        figure("nv", "nv", "d", 3),
        figure("nu", "nu", "d", 1),
        Column("actuators", actuators, rank=4),
        figure("mass kg", "mass_kg", ",.3g", 5),
        figure("timestep s", "timestep_s", "g", 5),
        figure("steps/s", "steps_per_s", ",.0f", 1),
        Column("hash", lambda row: (row.hash or NONE)[:HASH_SHOWN], rank=8),
    ]


def _messages(rows: Sequence[RobotCheck]) -> Iterator[Text]:
    for row in rows:
        if row.messages:
            where = f"{row.path} ({row.where})" if row.where else row.path
            lines = "".join(f"\n    {message}" for message in row.messages)
            yield Text.assemble("\n", (where, STYLE[row.verdict]), lines)
