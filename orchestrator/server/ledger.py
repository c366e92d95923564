"""What the supervisor writes besides jobs and attempts: events, answers, and what users want."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from orchestrator.core.decoding import decode
from orchestrator.core.text import plain
from orchestrator.ledger import Ledger
from orchestrator.server.requests import Answer

Wanted: TypeAlias = Literal["run", "pause", "cancel"]
"""What the user wants of a job. The supervisor brings the job there."""


INTERNAL = ("answer", "ended", "underway")
"""Kinds of events that are for clients, not for people. Only the supervisor reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event of the stream."""

    id: int
    at: float
    """Seconds since the epoch."""
    kind: str
    job_id: str | None
    message: str
    facts: Mapping[str, Any]
    """In JSON types."""


class ServerLedger(Ledger):
    """The ledger with its stream of events. Only the supervisor writes."""

    prints = False
    """Whether events are printed as well: the standard output of the supervisor is its log."""

    @contextlib.contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Undo what the block has written if it raises. The transaction goes on."""
        if not self._connection.in_transaction:
            self.change("BEGIN IMMEDIATE")  # otherwise RELEASE would commit
        self.change("SAVEPOINT block")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # SQLite ends it by itself where the disk fails
                self.change("ROLLBACK TO block")
                self.change("RELEASE block")
            raise
        self.change("RELEASE block")

    def record_event(self, kind: str, message: str, facts: Mapping[str, Any]) -> None:
        """Append an event to the open transaction."""
        if self.prints and kind != "answer":
            with contextlib.suppress(OSError):  # the disk is full
                print(f"{time.strftime('%H:%M:%S')} {kind}: {plain(message)}", flush=True)
        self.change(
            "INSERT INTO events (at, kind, job_id, message, facts) VALUES (?, ?, ?, ?, ?)",
            (time.time(), kind, facts.get("job_id"), message, json.dumps(facts, default=str)),
        )

    def events_after(self, cursor: int) -> list[EventRow]:
        """Return the events with larger ids than ``cursor``, in their order."""
        sql = "SELECT id, at, kind, job_id, message, facts FROM events WHERE id > ? ORDER BY id"
        return [
            EventRow(
                id=row["id"],
                at=row["at"],
                kind=row["kind"],
                job_id=row["job_id"],
                message=row["message"],
                facts=json.loads(row["facts"]),
            )
            for row in self.select(sql, (cursor,))
        ]

    def last_event_id(self) -> int:
        """Return the id of the last event, 0 if there is none."""
        return cast(int, self.select("SELECT coalesce(max(id), 0) FROM events")[0][0])

    def set_wanted(self, job_id: str, wanted: Wanted) -> None:
        self.change("UPDATE jobs SET wanted = ? WHERE job_id = ?", (wanted, job_id))

    def wanted(self) -> dict[str, Wanted]:
        """Return what users want of the jobs, by ``job_id``."""
        return wanted(self)

    def wanted_of(self, job_id: str) -> Wanted:
        """Return what the user wants of a job; that of a new one is "run"."""
        found = self.select("SELECT wanted FROM jobs WHERE job_id = ?", (job_id,))
        return cast(Wanted, found[0][0]) if found else "run"

    def last_position(self) -> int:
        """Return the last place in the order of the jobs, -1 if there are none."""
        sql = "SELECT coalesce(max(position), -1) FROM declared"
        return cast(int, self.select(sql)[0][0])

    def record_answer(self, id_: str, answer: Answer) -> None:
        self.change("INSERT OR REPLACE INTO answers VALUES (?, ?)", (id_, answer.to_json()))

    def answer(self, id_: str) -> Answer | None:
        """Return the answer to a request, or None if it was not applied yet."""
        found = self.select("SELECT answer FROM answers WHERE id = ?", (id_,))
        return decode(Answer, found[0][0]) if found else None


def wanted(ledger: Ledger) -> dict[str, Wanted]:
    """Return what users want of the jobs, by ``job_id``."""
    return {row[0]: row[1] for row in ledger.select("SELECT job_id, wanted FROM jobs")}
