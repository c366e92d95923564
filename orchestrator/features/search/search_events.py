"""What a search has done, in the order in which it happened: from these rows it is rebuilt after
any interruption.

The table is there only in ledgers of searches. The searcher, a process of its own, writes it. The
supervisor enters that a search begins, before its first job is launched (:func:`begin`), and ends
one that the job file no longer declares (:func:`withdraw`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import LedgerDamagedError
from orchestrator.experiment.begun_source import Standing
from orchestrator.features.search.declaration.written import start_over
from orchestrator.features.search.event_contents import (
    OF_UNCHANGED_JOB,
    WITHOUT_TRIAL,
    problem_of,
)
from orchestrator.ledger import Ledger

SCHEMA = """
CREATE TABLE IF NOT EXISTS search (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, trial INTEGER, content TEXT NOT NULL
)
"""

WITHDRAWN = "is_withdrawn"

Kind: TypeAlias = Literal[
    "began", "asked", "reached", "promoted", "over", "retried", "told", "ended"
]
"""``began``: a session of the search, with the number of jobs at once; 0 where one that was withdrawn
is declared again. ``asked``: a trial was made, with its point. ``reached``: all of its jobs are paused at a
rung. ``promoted``: it goes on to a later rung. ``over``: its jobs have ended, with its values.
``retried``: it had failed, and is trained again. ``told``: the sampler was told this outcome of it.
``ended``: the search is over."""

LATEST = 1e11
"""No event happens later; seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEvent:
    kind: Kind
    trial: int | None = None
    content: Mapping[str, Any]
    at: float = 0.0
    """Seconds since the epoch; set when it is written."""
    id: int = 0
    """Rising; set when it is written."""


def is_search(ledger: Ledger) -> bool:
    """Whether a search has ever been declared and run in this run directory, though it may have no
    event yet.
    """
    return bool(
        ledger.select(
            "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'search'"
        )[0][0]
    )


def began_at(ledger: Ledger) -> float | None:
    """When the search of this ledger first began, in seconds since the epoch; None where none has.
    The search of another ledger has another time.
    """
    if not is_search(ledger):
        return None
    first = ledger.select("SELECT at FROM search ORDER BY id LIMIT 1")
    return first[0][0] if first else None


def standing(ledger: Ledger) -> Standing:
    """Of the search that has begun here."""
    if not is_search(ledger):
        return "none"
    sql = f"SELECT kind, {_in_content(WITHDRAWN)} FROM search WHERE kind IN ('began', 'ended')"  # noqa: S608
    last = ledger.select(f"{sql} ORDER BY id DESC LIMIT 1")
    if not last:  # its first session has not begun yet
        return "underway"
    kind, is_withdrawn = last[0]
    if kind == "began":
        return "underway"
    return "none" if is_withdrawn else "over"


def begin(ledger: Ledger) -> None:
    """Enter, into the open transaction of ``ledger``, that a search is underway, also where it was
    withdrawn before. Its session begins later, with the searcher.
    """
    ledger.change(SCHEMA)  # a table without events says it
    if standing(ledger) == "none":
        add(ledger, [SearchEvent(kind="began", content={"lanes": 0})])


def withdraw(ledger: Ledger) -> None:
    """Enter, into the open transaction of ``ledger``, that the job file declares no search any
    more.
    """
    if standing(ledger) != "none":
        add(ledger, [SearchEvent(kind="ended", content={WITHDRAWN: True})])


def events(ledger: Ledger, *, after: int = 0) -> list[SearchEvent]:
    """The events with an id above ``after``, in their order; none where no search has begun.

    :raises LedgerDamagedError: a row cannot be read.
    """
    if not is_search(ledger):
        return []
    found = ledger.select(
        "SELECT id, at, kind, trial, content FROM search WHERE id > ? ORDER BY id", (after,)
    )
    contents = _contents(ledger.path, found)
    return [_event(ledger.path, row, content) for row, content in zip(found, contents, strict=True)]


def _contents(path: Path, rows: Sequence[Any]) -> Sequence[Any]:
    """What the texts of the rows hold."""
    contents: Sequence[Any] = []
    # All at once is much faster than one by one, which tells the row that is damaged.
    with contextlib.suppress(ValueError, TypeError):
        contents = parsed_json(f"[{','.join(row['content'] for row in rows)}]")
    if len(contents) == len(rows):
        return contents
    return [_content(path, row) for row in rows]


def _content(path: Path, row: Any) -> Any:
    try:
        return parsed_json(row["content"])
    except (ValueError, TypeError) as error:
        raise damage_error(path, row["id"], row["kind"], str(error)) from error


def damage_error(path: Path, event_id: int, kind: str, why: str) -> LedgerDamagedError:
    """The error that says what is wrong with one event."""
    where = f"{path}: the ledger is damaged: row {event_id} of its table search ({kind!s:.20})"
    return LedgerDamagedError(
        f"{where}: {why}. Jobs and their results are as they were. "
        f"The search cannot go on: {start_over()}"
    )


def has_value(ledger: Ledger) -> bool:
    """Whether a trial that is searched among has come to its end with a value for each objective:
    none that trains the unchanged job.
    """
    unchanged = ", ".join(f"'{role}'" for role in OF_UNCHANGED_JOB)
    # Trials are numbered as they were asked for.
    asked = (
        f"SELECT row_number() OVER (ORDER BY id) - 1 AS number, {_in_content('role')} AS role"  # noqa: S608
        " FROM search WHERE kind = 'asked'"
    )
    valued = f"kind = 'over' AND {_in_content('values')} IS NOT NULL"
    others = f"SELECT number FROM ({asked}) WHERE role IN ({unchanged})"  # noqa: S608
    sql = f"SELECT id FROM search WHERE {valued} AND trial NOT IN ({others}) LIMIT 1"  # noqa: S608
    return bool(ledger.select(sql))


def _in_content(key: str) -> str:
    """SQL for a value of the content of an event; NULL where that is damaged."""
    return f"CASE WHEN json_valid(content) THEN json_extract(content, '$.{key}') END"


def _event(path: Path, row: Any, content: Any) -> SearchEvent:
    problem = problem_of(row["kind"], row["trial"], content)
    is_moment = isinstance(row["at"], float) and 0.0 <= row["at"] < LATEST
    if not problem and not is_moment:
        problem = "at: expected a time"
    if problem:
        raise damage_error(path, row["id"], row["kind"], problem)
    trial = None if row["kind"] in WITHOUT_TRIAL else row["trial"]
    return SearchEvent(kind=row["kind"], trial=trial, content=content, at=row["at"], id=row["id"])


def add(ledger: Ledger, new: Iterable[SearchEvent]) -> None:
    """Enter events into the open transaction of ``ledger``, at the present time."""
    ledger.change(SCHEMA)
    for event in new:
        text = json.dumps(event.content, sort_keys=True)
        sql = "INSERT INTO search (at, kind, trial, content) VALUES (?, ?, ?, ?)"
        ledger.change(sql, (time.time(), event.kind, event.trial, text))
