"""On which CPUs an attempt ran, and when: a row for each time that it was moved.

The table is there only in ledgers of runs in which that has happened. An attempt's own row has its present CPUs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from orchestrator.core.decoding import parsed_json

SCHEMA = """
CREATE TABLE IF NOT EXISTS cpu_moves (
    job_id TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, cpus_before TEXT NOT NULL
)
"""
EXISTS = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'cpu_moves'"
ADD = "INSERT INTO cpu_moves (job_id, number, at, cpus_before) VALUES (?, ?, ?, ?)"
MOVED = "UPDATE attempts SET cpus = ? WHERE job_id = ? AND number = ?"
SELECT = "SELECT job_id, number, at, cpus_before FROM cpu_moves ORDER BY at"


class CpuSpan(TypedDict):
    """CPUs that an attempt had for some time."""

    since: float
    """Seconds since the epoch; it lasted until the next one began, or the attempt ended."""
    cpus: list[int]


def spans(started_at: float, cpus: list[int], moves: Sequence[tuple[float, list[int]]]) -> list[CpuSpan]:
    """Of one attempt, the first one first.

    :param cpus: where it ran last.
    :param moves: when it was moved, and from where.
    """
    starts = [started_at, *(at for at, _ in moves)]
    places = [*(before for _, before in moves), cpus]
    return [CpuSpan(since=since, cpus=place) for since, place in zip(starts, places, strict=True)]


def by_attempt(rows: Sequence[Any]) -> Mapping[tuple[str, int], list[tuple[float, list[int]]]]:
    """Rows of :data:`SELECT` by job and number. :raises ValueError: one cannot be read."""
    moves: dict[tuple[str, int], list[tuple[float, list[int]]]] = defaultdict(list)
    for job_id, number, at, cpus_before in rows:
        before = parsed_json(cpus_before)
        if not (isinstance(at, float) and isinstance(before, list) and all(type(cpu) is int for cpu in before)):
            raise ValueError(f"a move of {job_id!r:.60} is {(at, before)!r:.60}")
        moves[job_id, number].append((at, before))
    return moves


def move_values(job_id: str, number: int, before: Sequence[int], at: float) -> tuple[str, int, float, str]:
    return job_id, number, at, json.dumps(list(before))
