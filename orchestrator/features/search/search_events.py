"""What a search has done, in the order in which it happened: from these rows it is rebuilt after
any interruption.

They are in a file of their own, which the searcher, a process of its own, writes. The supervisor
enters that a search begins, before its first job is launched (:func:`begin`), and ends one that the
job file no longer declares (:func:`withdraw`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import LedgerDamagedError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.begun_source import Standing
from orchestrator.features.search.declaration.written import start_over
from orchestrator.features.search.event_contents import (
    OF_UNCHANGED_JOB,
    WITHOUT_TRIAL,
    problem_of,
)
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.ledger.database import Database
from orchestrator.ledger.schema import FORMAT

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


class SearchDatabase(Database):
    """The events of a search, and the requests of its searcher that may not have been answered."""

    schema = """
    CREATE TABLE program (version TEXT NOT NULL);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, trial INTEGER, content TEXT NOT NULL
    );
    CREATE TABLE outbox (id INTEGER PRIMARY KEY, request TEXT NOT NULL);
    """
    format = FORMAT

    def events(self, *, after: int = 0) -> list[SearchEvent]:
        """Return the events with an id above ``after``, in their order.

        :raises LedgerDamagedError: a row cannot be read.
        """
        sql = "SELECT id, at, kind, trial, content FROM events WHERE id > ? ORDER BY id"
        found = self.select(sql, (after,))
        contents = _contents(self.path, found)
        return [
            _event(self.path, row, content) for row, content in zip(found, contents, strict=True)
        ]

    def add(self, new: Iterable[SearchEvent]) -> None:
        """Enter events into the open transaction, at the present time."""
        for event in new:
            text = json.dumps(event.content, sort_keys=True)
            sql = "INSERT INTO events (at, kind, trial, content) VALUES (?, ?, ?, ?)"
            self.change(sql, (time.time(), event.kind, event.trial, text))

    def standing(self) -> Standing:
        """Return whether the search goes on."""
        sql = f"SELECT kind, {_in_content(WITHDRAWN)} FROM events WHERE kind IN ('began', 'ended')"  # noqa: S608
        last = self.select(f"{sql} ORDER BY id DESC LIMIT 1")
        if not last:  # its first session has not begun yet
            return "underway"
        kind, is_withdrawn = last[0]
        if kind == "began":
            return "underway"
        return "none" if is_withdrawn else "over"


def has_begun(paths: RunPaths) -> bool:
    """Return whether a search has ever been declared and run in this run directory, though it may
    have no event yet.
    """
    return SearchPaths(paths.root).events.exists()


@contextlib.contextmanager
def reading(paths: RunPaths) -> Iterator[SearchDatabase]:
    """Open the file of a search that has begun, to read it."""
    database = SearchDatabase.open(SearchPaths(paths.root).events, read_only=True, is_sound=True)
    try:
        yield database
    finally:
        database.abandon()


@contextlib.contextmanager
def writing(paths: RunPaths) -> Iterator[SearchDatabase]:
    """Open the file of a search to write in it, and commit at the end of the block. It is created if
    it is missing.
    """
    path = SearchPaths(paths.root).events
    path.parent.mkdir(exist_ok=True)
    database = SearchDatabase.open(path) if path.exists() else SearchDatabase.create(path)
    try:
        yield database
        database.commit()
    finally:
        database.abandon()


def began_at(paths: RunPaths) -> float | None:
    """Return when the search of a run directory first began, in seconds since the epoch, or None if
    none has. That of another run directory has another time.
    """
    if not has_begun(paths):
        return None
    with reading(paths) as database:
        first = database.select("SELECT at FROM events ORDER BY id LIMIT 1")
    return first[0][0] if first else None


def standing(paths: RunPaths) -> Standing:
    """Return whether a search has begun in a run directory, and goes on."""
    if not has_begun(paths):
        return "none"
    with reading(paths) as database:
        return database.standing()


def events(paths: RunPaths, *, after: int = 0) -> list[SearchEvent]:
    """Return the events of a run directory with an id above ``after``; none if no search has begun.

    :raises LedgerDamagedError: a row cannot be read.
    """
    if not has_begun(paths):
        return []
    with reading(paths) as database:
        return database.events(after=after)


def begin(paths: RunPaths) -> None:
    """Enter that a search is underway, also one that was withdrawn before. Its session begins later,
    with the searcher.
    """
    with writing(paths) as database:
        if database.standing() == "none":
            database.add([SearchEvent(kind="began", content={"lanes": 0})])


def withdraw(paths: RunPaths) -> None:
    """Enter that the job file declares no search any more."""
    if standing(paths) != "none":
        with writing(paths) as database:
            database.add([SearchEvent(kind="ended", content={WITHDRAWN: True})])


def forget(paths: RunPaths) -> None:
    """Remove what is known of a search."""
    path = SearchPaths(paths.root).events
    for ending in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)


def has_value(paths: RunPaths) -> bool:
    """Return whether a trial that is searched among has come to its end with a value for each
    objective: none that trains the unchanged job.
    """
    unchanged = ", ".join(f"'{role}'" for role in OF_UNCHANGED_JOB)
    # Trials are numbered as they were asked for.
    asked = (
        f"SELECT row_number() OVER (ORDER BY id) - 1 AS number, {_in_content('role')} AS role"  # noqa: S608
        " FROM events WHERE kind = 'asked'"
    )
    valued = f"kind = 'over' AND {_in_content('values')} IS NOT NULL"
    others = f"SELECT number FROM ({asked}) WHERE role IN ({unchanged})"  # noqa: S608
    sql = f"SELECT id FROM events WHERE {valued} AND trial NOT IN ({others}) LIMIT 1"  # noqa: S608
    with reading(paths) as database:
        return bool(database.select(sql))


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
    """Return the error that says what is wrong with one event."""
    where = f"{path}: the record of the search is damaged: event {event_id} ({kind!s:.20})"
    return LedgerDamagedError(
        f"{where}: {why}. Jobs and their results are as they were. "
        f"The search cannot go on: {start_over()}"
    )


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
