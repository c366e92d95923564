"""Applies requests to a run directory that no supervisor holds, with the code of the supervisor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.errors import Problem
from orchestrator.core.job import Job
from orchestrator.executors.executor import AttemptId, Event, Shortage
from orchestrator.experiment import run_directory
from orchestrator.server.examiner import Examiner
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.leftovers import settle_left_attempts
from orchestrator.server.requests import Answer, ReceivedRequest, Request
from orchestrator.server.start_policies import NoPolicies
from orchestrator.server.supervisor import Supervisor
from orchestrator.server.verbs import STATES

OFFLINE = "offline"
"""Id of the request that is applied."""


class NoExecutor:
    """An executor without room: nothing is launched."""

    jobs_at_once = 0

    def resize(self, jobs_at_once: int) -> int:
        return 0

    def problems(self, job: Job) -> Sequence[Problem]:
        return []

    def expect(self, jobs: Sequence[Job]) -> None:
        """Nothing is launched."""

    def reserve(self, job: Job, *, waiting: int) -> Shortage | None:
        return "room"

    def submit(self, job: Job, number: int, job_dir: Path) -> None:
        raise AssertionError("there is no room")

    def release(self, job: Job) -> None:
        """Nothing is reserved."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        return ()

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        """No attempt runs."""

    def checkpoint(self, attempt: AttemptId) -> None:
        """No attempt runs."""

    def close(self) -> None:
        """Nothing is open."""


def apply(run_dir: Path, request: Request) -> Answer:
    """Apply a request, after those that the last supervisor has not read. Return the answer.

    :raises RunDirError: another process has locked the run directory meanwhile.
    """
    if request.verb not in STATES:
        return Answer(error=f"no supervisor is running; nothing to {request.verb}")
    with run_directory.claim(run_dir) as paths:
        ledger = ServerLedger.open(paths.ledger)
        try:
            supervisor = Supervisor(
                paths=paths,
                ledger=ledger,
                executor=NoExecutor(),
                examiner=Examiner(processes=0),
                policies=NoPolicies(),
                holder="",
                now=time.monotonic,
            )
            settle_left_attempts(paths, ledger, supervisor.report)
            supervisor.jobs.load(ledger.jobs())
            for entry in supervisor.jobs:
                supervisor.jobs.settle(entry)
            for received in supervisor.request_folder.new(()):
                left = received.request
                if left is None or left.verb != "add" or left.supervisor is not None:
                    supervisor.verbs.apply(received)  # robots are examined by the next supervisor
            ledger.change("DELETE FROM answers WHERE id = ?", (OFFLINE,))
            supervisor.verbs.apply(ReceivedRequest(id=OFFLINE, request=request))
            answer = ledger.answer(OFFLINE)
            supervisor.finish()
            ledger.close()
        finally:
            ledger.abandon()
    assert answer is not None
    return answer
