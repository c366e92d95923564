"""On which CPUs an attempt ran and when, and who else used them.

The tables are there only in ledgers of runs in which somebody else did. An attempt's own row has
its present CPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from orchestrator.core.decoding import parsed_json

TABLES = {
    "cpu_moves": """
CREATE TABLE IF NOT EXISTS cpu_moves (
    job_id TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, cpus_before TEXT NOT NULL
)
""",
    "cpu_competitors": """
CREATE TABLE IF NOT EXISTS cpu_competitors (
    job_id TEXT NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (job_id, number, name)
)
""",
}
"""Name → what makes it."""
EXISTS = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'cpu_competitors'"
ADD_MOVE = "INSERT INTO cpu_moves (job_id, number, at, cpus_before) VALUES (?, ?, ?, ?)"
ADD_COMPETITOR = "INSERT OR IGNORE INTO cpu_competitors (job_id, number, name) VALUES (?, ?, ?)"
MOVED = "UPDATE attempts SET cpus = ? WHERE job_id = ? AND number = ?"
MOVES = "SELECT job_id, number, at, cpus_before FROM cpu_moves ORDER BY at"
COMPETITORS = "SELECT job_id, number, name FROM cpu_competitors ORDER BY rowid"


class CpuSpan(TypedDict):
    """CPUs that an attempt had for some time."""

    since: float
    """Seconds since the epoch; it lasted until the next one began, or the attempt ended."""
    cpus: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuMove:
    at: float
    """Seconds since the epoch."""
    cpus_before: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHistory:
    """Of one attempt."""

    moves: list[CpuMove] = field(default_factory=list)
    """The first one first."""
    competitors: list[str] = field(default_factory=list)

    def spans(self, started_at: float, cpus: list[int]) -> list[CpuSpan]:
        """Where the attempt ran, the first place first. :param cpus: where it ran last."""
        starts = [started_at, *(move.at for move in self.moves)]
        places = [*(move.cpus_before for move in self.moves), cpus]
        return [
            CpuSpan(since=since, cpus=place) for since, place in zip(starts, places, strict=True)
        ]


def by_attempt(
    moves: Sequence[Any], competitors: Sequence[Any]
) -> Mapping[tuple[str, int], CpuHistory]:
    """Rows of :data:`MOVES` and :data:`COMPETITORS` by job and number. :raises ValueError: one
    cannot be read.
    """
    histories: dict[tuple[str, int], CpuHistory] = defaultdict(CpuHistory)
    for job_id, number, at, cpus_before in moves:
        before = parsed_json(cpus_before)
        if not (
            isinstance(at, float)
            and isinstance(before, list)
            and all(type(cpu) is int for cpu in before)
        ):
            raise ValueError(f"a move of {job_id!r:.60} is {(at, before)!r:.60}")
        histories[job_id, number].moves.append(CpuMove(at=at, cpus_before=before))
    for job_id, number, name in competitors:
        histories[job_id, number].competitors.append(str(name))
    return histories
