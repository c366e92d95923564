"""Requests of the searcher that the supervisor may not have answered: they are entered together with
the events that say so, and sent again after a kill. Each of them may be applied twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Answer, Request, RequestFolder

SCHEMA = "CREATE TABLE IF NOT EXISTS search_outbox (id INTEGER PRIMARY KEY, request TEXT NOT NULL)"
LOOK_EVERY_S = 0.02


@dataclass(slots=True, kw_only=True)
class Outbox:
    """Sends requests to the supervisor and waits for the answers."""

    paths: RunPaths
    ledger: ServerLedger
    holder: str
    """The only supervisor that they are for."""
    watchdog: Watchdog

    def __post_init__(self) -> None:
        self.ledger.change(SCHEMA)
        self.ledger.commit()

    def put(self, requests: Iterable[Request]) -> None:
        """Enter requests into the open transaction of the ledger."""
        for request in requests:
            values = {
                "verb": request.verb,
                "jobs": list(request.jobs),
                "args": dict(request.args),
            }
            sql = "INSERT INTO search_outbox (request) VALUES (?)"
            self.ledger.change(sql, (json.dumps(values),))

    def send(self) -> None:
        """Send what was entered. A request about jobs that is refused is of no use any more.

        :raises UsageError: jobs cannot be added.
        """
        for row in self.ledger.select("SELECT id, request FROM search_outbox ORDER BY id"):
            request = Request(**json.loads(row["request"]), supervisor=self.holder)
            answer = self._ask(request)
            if answer.error and request.verb == "add":
                raise UsageError(answer.error)
            self.ledger.change("DELETE FROM search_outbox WHERE id = ?", (row["id"],))
            self.ledger.commit()

    def _ask(self, request: Request) -> Answer:
        """Return the answer. While the supervisor examines robots, that takes a while; when it ends,
        so does this process.
        """
        id_ = RequestFolder(self.paths.requests).leave(request)
        while (answer := self.ledger.answer(id_)) is None:
            self.watchdog.begin_step()
            time.sleep(LOOK_EVERY_S)
        return answer
