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
from orchestrator.features.search.search_events import SearchDatabase
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Answer, Request, RequestFolder

LOOK_EVERY_S = 0.02


@dataclass(slots=True, kw_only=True)
class Outbox:
    """Sends requests to the supervisor and waits for the answers."""

    paths: RunPaths
    database: SearchDatabase
    ledger: ServerLedger
    """Has the answers."""
    holder: str
    """The only supervisor that they are for."""
    watchdog: Watchdog

    def put(self, requests: Iterable[Request]) -> None:
        """Enter requests into the open transaction of the database."""
        for request in requests:
            values = {
                "verb": request.verb,
                "jobs": list(request.jobs),
                "args": dict(request.args),
            }
            sql = "INSERT INTO outbox (request) VALUES (?)"
            self.database.change(sql, (json.dumps(values),))

    def send(self) -> None:
        """Send what was entered. A request about jobs that is refused is of no use any more.

        :raises UsageError: jobs cannot be added.
        """
        for row in self.database.select("SELECT id, request FROM outbox ORDER BY id"):
            request = Request(**json.loads(row["request"]), supervisor=self.holder)
            answer = self._ask(request)
            if answer.error and request.verb == "add":
                raise UsageError(answer.error)
            self.database.change("DELETE FROM outbox WHERE id = ?", (row["id"],))
            self.database.commit()

    def _ask(self, request: Request) -> Answer:
        """Return the answer. While the supervisor examines robots, that takes a while; when it ends,
        so does this process.
        """
        id_ = RequestFolder(self.paths.requests).leave(request)
        while (answer := self.ledger.answer(id_)) is None:
            self.watchdog.begin_step()
            time.sleep(LOOK_EVERY_S)
        return answer
