"""Attempts on pilots: ordered by messages, followed by the pilots' reports."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.executors.executor import AttemptId, Event, Exited
from orchestrator.executors.launcher import Launch
from orchestrator.features.slurm.pilot_messages import (
    CheckpointOrder,
    EndOrder,
    LaunchOrder,
    spec_digest,
)
from orchestrator.features.slurm.pilot_registry import JoinedPilot, PilotRegistry

POLL_S = 0.1
CLOSE_S = 10.0


@dataclass(slots=True, kw_only=True)
class SlurmLauncher:
    """See :class:`orchestrator.executors.launcher.Launcher`.

    :param pilots: those that ``Launch.rank_slots`` names; ended when this is closed.
    :param worker_command: what is started in place of the worker, with job directory and attempt
        number appended.
    :param environment: changes to every worker's environment; None removes a variable.
    """

    pilots: PilotRegistry
    worker_command: Sequence[str] | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    _attempts: dict[AttemptId, JoinedPilot] = field(default_factory=dict, init=False)

    never_forks = ""

    def prepare_to_fork(self) -> bool:
        return True  # each pilot waits for its own

    def submit(self, launch: Launch) -> AttemptId:
        slot = launch.rank_slots[0]
        if (pilot := self.pilots.get(slot.node)) is None:
            raise OSError("the pilot chosen for it has ended")
        order = LaunchOrder(
            attempt=launch.id,
            job_dir=str(launch.job_dir.absolute()),
            spec_digest=spec_digest(launch.job_dir),
            cores=slot.cores,
            gpus=slot.gpus,
            threads=launch.threads,
            ranks=launch.ranks,
            log_mib=launch.log_mib,
            nice=launch.nice,
            fork=launch.fork,
            why_exec=launch.why_exec,
            command=self.worker_command,
            environment=self.environment,
        )
        self._attempts[launch.id] = pilot
        pilot.attempts[launch.id] = slot.cores
        pilot.outbox.send(order)
        return launch.id

    def poll(self, timeout_s: float) -> Sequence[Event]:
        deadline = time.monotonic() + timeout_s
        while True:
            events = self.pilots.update()
            for event in events:
                if isinstance(event, Exited):
                    self._attempts.pop(event.attempt, None)
            remaining_s = deadline - time.monotonic()
            if events or remaining_s <= 0.0:
                return events
            time.sleep(min(POLL_S, remaining_s))

    def cancel(self, attempt: AttemptId, *, kill: bool) -> None:
        if (pilot := self._attempts.get(attempt)) is not None:
            pilot.outbox.send(EndOrder(attempt, kill))

    def checkpoint(self, attempt: AttemptId) -> None:
        if (pilot := self._attempts.get(attempt)) is not None:
            pilot.outbox.send(CheckpointOrder(attempt))

    def close(self) -> None:
        if self.pilots.is_closed:  # they serve another supervisor by now
            self._attempts.clear()
        for attempt in self._attempts:
            self.cancel(attempt, kill=True)
        deadline = time.monotonic() + CLOSE_S
        while self._attempts and time.monotonic() < deadline:
            for event in self.pilots.receive():
                if isinstance(event, Exited):
                    self._attempts.pop(event.attempt, None)
            time.sleep(0.02)
        self._attempts.clear()
        self.pilots.close()
