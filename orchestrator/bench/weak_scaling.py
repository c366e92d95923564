"""Weak scaling: the same work once, twice, many times over, started in every way, in turns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.bench import drift, plan
from orchestrator.bench.plan import Cells
from orchestrator.bench.runner import Cell, Ground, measure
from orchestrator.bench.workload import Work
from orchestrator.core.errors import UsageError
from orchestrator.core.text import duration

PATIENCE = 4.0
"""A cell may take so many times as long as one supervised process alone, and longer where processes share cores."""
CALIBRATION_LIMIT_S = 1800.0
CALIBRATION = Cell(arm="pinned", level=1, repeat=-1)

Told = Callable[[str], None]
Take = Callable[[Cell], dict[str, Any]]
"""Measures a cell: see :func:`orchestrator.bench.runner.measure`."""


def calibrate(path: Path, document: dict[str, Any], work: Work, ground: Ground, told: Told) -> dict[str, Any]:
    """The plan with what a cell takes alone and undisturbed: time limits and drift are measured by it.

    It is also what fills the disk's cache. A continued benchmark keeps what it had.

    :raises UsageError: when not even that can be measured.
    """
    if document["calibration"] is not None:
        return document
    told(f"one {work.job.job_id} alone, to know what to expect")
    reference_s = drift.kernel_s(ground.cpus)
    begun = time.monotonic()
    record = measure(
        CALIBRATION,
        work,
        ground,
        seconds=document["seconds"],
        limit_s=CALIBRATION_LIMIT_S,
        reference_s=reference_s,
    )
    if record["status"] == "failed":
        raise UsageError(f"{work.job.job_id} cannot be measured: {record['message']}")
    if record["status"] == "cut":
        raise UsageError(
            f"{work.job.job_id} cannot be measured: its iterations take too long ({record['message']});"
            " choose another with --job, or --set ppo.n_steps to less"
        )
    document = {
        **document,
        "reference_s": min(reference_s, record["drift"]["before_s"], record["drift"]["after_s"]),
        "calibration": {"cell_s": time.monotonic() - begun, "throughput": record["throughput"]},
    }
    plan.write(path, document)
    return document


def limit_s(document: dict[str, Any], level: int) -> float:
    """After which a cell is cut off."""
    sharing = max(1.0, level * document["work"]["cores"] / document["machine"]["capacity"])
    return float(PATIENCE * document["calibration"]["cell_s"] * sharing)


def taker(document: dict[str, Any], work: Work, ground: Ground) -> Take:
    """Copies of ``work``, as many and started as the cell says."""
    seconds, reference_s = document["seconds"], document["reference_s"]

    def take(cell: Cell) -> dict[str, Any]:
        limit = limit_s(document, cell.level)
        return measure(cell, work, ground, seconds=seconds, limit_s=limit, reference_s=reference_s)

    return take


def run(
    document: dict[str, Any], cells: Cells, wanted: Sequence[Cell], take: Take, *, retakes: int, told: Told
) -> None:
    """Measure what is missing. A disturbed cell is taken again later, a failed one is left for the next call."""
    queue = deque(cells.missing(wanted, retakes))
    if len(queue) < len(wanted):
        told(f"{len(wanted) - len(queue)} of {len(wanted)} cells are there already")
    if queue:
        each = document["calibration"]["cell_s"]
        told(f"{len(queue)} cells to be measured, about {duration(each * len(queue))} if none is slow")
    done, begun = 0, time.monotonic()
    while queue:
        cell = queue.popleft()
        record = take(cell)
        again = bool(record["disturbance"]) and cells.times_disturbed(cell) < retakes
        record = judged(record, again=again)
        cells.append(record)
        if again:
            queue.append(cell)
        done += 1
        each = (time.monotonic() - begun) / done
        left = f", about {duration(each * len(queue))} left" if queue else ""
        told(f"[{done}/{done + len(queue)}] {cell}: {in_words(record)}{left}")


def judged(record: dict[str, Any], *, again: bool) -> dict[str, Any]:
    """The record with what a disturbance makes of it.

    A measurement is "disturbed". A cell that was cut off under a disturbance says nothing as long as it is taken
    ``again``; after that it is the bound that it is.
    """
    why = record["disturbance"]
    if not why or record["status"] == "failed":
        return record
    if record["status"] == "ok":
        return {**record, "status": "disturbed", "message": why}
    if again:
        return {**record, "status": "disturbed", "throughput": None, "message": f"{record['message']}; {why}"}
    return {**record, "message": f"{record['message']}; {why}"}


def in_words(record: dict[str, Any]) -> str:
    """What became of a cell, in a line."""
    throughput = record["throughput"]
    match record["status"]:
        case "failed":
            return f"failed: {record['message']}"
        case "cut":
            return f"at most {throughput:,.0f} env_steps/s ({record['message']})"
        case "disturbed" if throughput is None:
            return f"disturbed: {record['message']}"
        case "disturbed":
            return f"{throughput:,.0f} env_steps/s, but disturbed: {record['message']}"
    return f"{throughput:,.0f} env_steps/s"
