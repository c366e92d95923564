"""A searcher in the place of a process, and examinations without a process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import changed_search
from orchestrator.features.search.searcher.outbox import Outbox
from orchestrator.features.search.searcher.searcher import Searcher
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.server.declaration import job_from_values
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.offline import NoExecutor
from orchestrator.server.requests import Answer, ReceivedRequest, Request
from orchestrator.server.start_policies import NoPolicies
from orchestrator.server.supervisor import Supervisor
from orchestrator.worker.robots.preflight_child import check


class AnsweringOutbox(Outbox):
    """Acts on requests as a supervisor does that examines no robots and launches nothing: its ledger
    is open for writing.
    """

    def _ask(self, request: Request) -> Answer:
        if request.verb == "add":
            for values in request.args["jobs"]:
                position = self.ledger.last_position() + 1
                declared = DeclaredJob(position=position, job=job_from_values(values))
                self.ledger.put_jobs([declared])
            self.ledger.commit()
            return Answer()
        nothing: Any = None
        supervisor = Supervisor(
            paths=self.paths,
            ledger=self.ledger,
            executor=NoExecutor(),
            examiner=nothing,
            policies=NoPolicies(),
            holder=self.holder,
        )
        supervisor.jobs.load(self.ledger.jobs())
        supervisor.verbs.apply(ReceivedRequest(id="it", request=request))
        answer = self.ledger.answer("it")
        assert answer is not None
        self.ledger.change("DELETE FROM answers")
        self.ledger.commit()
        return answer


def searcher_of(paths: RunPaths, jobs_at_once: int = 1) -> Searcher:
    """A searcher in the place of a process, which goes on with what the ledger has."""
    searcher = Searcher(
        paths=paths,
        experiment=changed_search.declared_experiment(paths),
        holder="me",
        watchdog=Watchdog(jobs_at_once=jobs_at_once),
    )
    searcher.ledger.abandon()
    searcher.ledger = ServerLedger.open(paths.ledger)
    searcher._outbox = AnsweringOutbox(
        paths=paths,
        database=searcher.database,
        ledger=searcher.ledger,
        holder="me",
        watchdog=searcher.watchdog,
    )
    return searcher


def make_turns(searcher: Searcher) -> None:
    """All turns until there is nothing more to be done."""
    while not searcher.history.is_over and searcher._turn():
        continue


def examine_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients in this process examine robots themselves, which saves the start of a child process."""

    def ask(requests: Sequence[ExaminationRequest], **_: Any) -> list[ExaminationAnswer]:
        return [check(request) for request in requests]

    monkeypatch.setattr("orchestrator.examination.side_by_side.ask", ask)
    monkeypatch.setattr("orchestrator.examination.examining_process.Child", contextlib.nullcontext)
