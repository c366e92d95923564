"""What ``check`` prints for people: a table, and below it what is to be said of each file."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.text import Text

from orchestrator.core.text import number
from orchestrator.experiment.robot_check import CheckVerdict, RobotCheck
from orchestrator.terminal import tables, views
from orchestrator.terminal.tables import Column

STYLE: Mapping[CheckVerdict, str] = {"ok": "green", "warning": "yellow", "error": "bold red", "fragment": "dim"}
NONE = "–"


@contextlib.contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """To be called with the numbers of robots examined and to be examined; shown on a terminal only."""
    on = views.console()
    if not on.is_terminal:
        yield lambda *_: None
        return
    with on.status("examining …") as status:
        yield lambda done, count: status.update(f"{done} of {count} examined")


def show(rows: Sequence[RobotCheck]) -> None:
    on = views.console()
    views.show(on, tables.table(_columns(rows), on.width), *_messages(rows), _summary(rows))


def _columns(rows: Sequence[RobotCheck]) -> list[Column]:
    def figure(name: str, form: str) -> list[str]:
        return [number(row.figures.get(name), form) for row in rows]

    def count(name: str) -> list[str]:
        return [str(len(row.figures[name])) if name in row.figures else NONE for row in rows]

    memory = [row.figures["model_mib"] + row.figures["data_mib"] if row.figures else None for row in rows]
    jobs = [Column(name="job", cells=[row.job or NONE for row in rows])] if any(row.job for row in rows) else []
    return [
        Column(name="robot", cells=[row.path for row in rows]),
        *jobs,
        Column(name="verdict", cells=[row.verdict for row in rows], styles=[STYLE[row.verdict] for row in rows]),
        Column(name="root", cells=[row.figures.get("root", NONE) for row in rows], rank=1),
        Column(name="task", cells=[row.task or NONE for row in rows], rank=2),
        Column(name="nq", cells=figure("nq", "d"), justify="right", rank=3),
        Column(name="nv", cells=figure("nv", "d"), justify="right", rank=3),
        Column(name="nu", cells=figure("nu", "d"), justify="right", rank=1),
        Column(name="actuators", cells=[_kinds(row) for row in rows], rank=4),
        Column(name="keyframes", cells=count("keyframes"), justify="right", rank=7),
        Column(name="sensors", cells=count("sensors"), justify="right", rank=7),
        Column(name="cameras", cells=count("cameras"), justify="right", rank=7),
        Column(name="mass kg", cells=figure("mass_kg", ",.3g"), justify="right", rank=5),
        Column(name="timestep s", cells=figure("timestep_s", "g"), justify="right", rank=5),
        Column(name="steps/s", cells=figure("steps_per_s", ",.0f"), justify="right", rank=1),
        Column(name="MiB", cells=[number(mib, ",.1f") for mib in memory], justify="right", rank=6),
        Column(name="hash", cells=[(row.hash or NONE)[:12] for row in rows], rank=8),
    ]


def _kinds(row: RobotCheck) -> str:
    kinds = row.figures.get("actuators", {})
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or NONE


def _messages(rows: Sequence[RobotCheck]) -> Iterator[Text]:
    for row in rows:
        if row.messages:
            where = f"{row.path} ({row.where})" if row.where else row.path
            lines = "".join(f"\n    {message}" for message in row.messages)
            yield Text.assemble("\n", (where, STYLE[row.verdict]), lines)


def _summary(rows: Sequence[RobotCheck]) -> Text:
    counts = Counter(row.verdict for row in rows)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in STYLE if counts[verdict])
    return Text(f"\n{len(rows)} examined: {told}")
