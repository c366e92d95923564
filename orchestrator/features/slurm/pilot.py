"""A pilot: the process of one task of the array. ``python -m orchestrator.features.slurm.pilot
RUN_DIR/slurm``.

It runs the attempts that the supervisor orders, on the CPUs that Slurm gave it, and reports about
them. It goes on with what it has while there is no supervisor. It hands everything back when Slurm
ends it, or when another supervisor calls.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType

from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.processes.process_setup import set_up_process
from orchestrator.executors.executor import AttemptId, Event, Exited, Placed
from orchestrator.features.slurm.allocation import cores_of, memory_of, task_of
from orchestrator.features.slurm.mailbox import Inbox, Outbox
from orchestrator.features.slurm.pilot_attempts import PilotAttempts
from orchestrator.features.slurm.pilot_messages import (
    CheckpointOrder,
    EndOrder,
    EndPilotOrder,
    JoinOrder,
    LaunchOrder,
    PilotBeat,
    PilotBye,
    PilotHello,
    PilotLeaving,
)
from orchestrator.features.slurm.pilot_names import PilotName, events_of, orders_of
from orchestrator.features.slurm.session_file import HAND_BACK_S, Session, read_session
from orchestrator.machine import topology
from orchestrator.machine.provenance import installed_versions

POLL_S = 0.1
"""How late an order may be noticed."""
REPORT_EVERY_S = 1.0
"""For progress and memory; starts and ends are reported at once."""
BEAT_EVERY_S = 2.0
WITHOUT_SUPERVISOR_S = 600.0
"""After so long without a supervisor and without an attempt, a pilot ends."""
TERMINATED_HAND_BACK_S = 20.0
"""As :data:`HAND_BACK_S`, after SIGTERM: Slurm kills what is left after its KillWait, 30 s by
default."""
LAST_WORDS_S = 10.0
"""For the last message, while the file system is full or away."""
SESSION_LOOKS = Pace(every_s=5.0)
"""For the file of the session: a supervisor that began before this pilot joined does not know of
it."""
SESSION_PATIENCE_S = 60.0
"""For the file of the session: a network file system may show a new file late."""
REASONS = {
    signal.SIGUSR1: "the time limit of its pilot is near",
    signal.SIGTERM: "Slurm ended its pilot",
}


class Pilot:
    """See the module.

    :param folder: ``slurm`` in the run directory.
    :param variables: as Slurm sets them.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        has_gpus = "SLURM_JOB_GPUS" in variables or "SLURM_GPUS_ON_NODE" in variables
        machine = topology.detect(with_gpus=has_gpus)
        cores = cores_of(machine, variables)
        node = variables.get("SLURMD_NODENAME", socket.gethostname())
        self._folder = folder
        # Not SLURM_RESTART_COUNT: a controller that was killed forgets the latest starts.
        self._name = str(PilotName(task=task_of(variables), began=int(time.time())))
        self._hello = PilotHello(
            node=node,
            cores=cores,
            gpus=len(machine.gpus),
            memory_mib=memory_of(machine, variables),
            cpu_model=topology.cpu_model(),
            versions=installed_versions(),
        )
        self._machine = machine
        self._signals: list[int] = []
        self._leaves = False
        self._ends = False
        self._next: str | None = None
        """The session to be served next."""
        self._kill_at: float | None = None
        self._served: set[str] = set()
        """Sessions of this pilot; the file may be read late, and name one of those before."""
        self._heard = time.monotonic()
        self._pending: dict[tuple[AttemptId, type], Event] = {}
        """The latest progress and memory of each attempt that were not reported yet."""
        self._report_at = 0.0
        self._beat_at = 0.0
        self._session = ""
        self._session_looks = Pacer(SESSION_LOOKS)

    def on_signal(self, number: int, _: FrameType | None = None) -> None:
        """A signal handler."""
        self._signals.append(number)

    def serve(self, session: str) -> str | None:
        """Serve the supervisor of ``session``. Returns the session to be served next; None: the
        pilot ends.
        """
        self.begin(session)
        with contextlib.closing(self._attempts):
            while not self.turn():
                pass
        return self.next

    def begin(self, session: str) -> None:
        """Take launches of the supervisor of ``session`` from now on."""
        self._attempts = PilotAttempts(
            self._machine, self._hello.cores, self._hello.node, self._folder.parent
        )
        root = self._folder / session
        self._session = session
        self._inbox = Inbox(orders_of(root, self._name))
        self._outbox = Outbox(events_of(root, self._name))
        self._next = None
        self._kill_at = None
        self._heard = time.monotonic()
        self._served.add(session)
        self._outbox.send(self._hello)
        self._session_looks.wait()

    def turn(self) -> bool:
        """Obey and report once. Returns whether the session is over: nothing of it is left here."""
        self._act_on_signals()
        if self._session_looks.is_due():
            self._session_looks.wait()
            self._follow(self._session)
        for order in self._inbox.receive():
            self._heard = time.monotonic()
            self._obey(order)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._attempts.kill()
        self._report(self._attempts.poll(POLL_S))
        is_over = not self._attempts and (
            self._leaves or self._ends or self._next is not None or self._is_forgotten
        )
        if is_over:
            self._outbox.send(PilotBye())
            self._outbox.finish(LAST_WORDS_S)
        return is_over

    @property
    def next(self) -> str | None:
        """The session to be served next; None: the pilot ends."""
        return None if self._leaves or self._ends else self._next

    def _follow(self, session: str) -> None:
        """See whether another supervisor, or none, is to be served."""
        current = read_session(self._folder)
        if current is None or current.session in self._served - {session}:
            return
        if current.ended:
            self._obey(EndPilotOrder())
        elif current.session != session:
            self._obey(JoinOrder(current.session))

    @property
    def _is_forgotten(self) -> bool:
        return time.monotonic() - self._heard > WITHOUT_SUPERVISOR_S

    def _act_on_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            why = REASONS.get(signal.Signals(number), REASONS[signal.SIGTERM])
            log(f"{signal.Signals(number).name}: {why}")
            self._leaves = True
            self._outbox.send(PilotLeaving(why))
            self._attempts.hand_back(why)
            if number != signal.SIGUSR1:
                self._kill_at = time.monotonic() + TERMINATED_HAND_BACK_S

    def _obey(self, order: object) -> None:
        match order:
            case LaunchOrder():
                self._attempts.launch(order)
            case EndOrder(attempt, kill):
                self._attempts.end(attempt, kill=kill)
            case CheckpointOrder(attempt):
                self._attempts.checkpoint(attempt)
            case JoinOrder(session) if self._next is None:
                self._next = session
                self._kill_at = time.monotonic() + HAND_BACK_S
                self._attempts.hand_back("another supervisor has taken over")
            case EndPilotOrder():
                self._ends = True
                self._attempts.hand_back("its supervisor has ended its pilot")
                self._attempts.kill()

    def _report(self, events: Iterable[Event]) -> None:
        now = time.monotonic()
        is_urgent = False
        for event in events:
            if isinstance(event, Placed | Exited):
                is_urgent = True
            self._pending[event.attempt, type(event)] = event
        if is_urgent or (self._pending and now >= self._report_at):
            self._outbox.send(*self._pending.values())
            self._pending.clear()
            self._report_at = now + REPORT_EVERY_S
            self._beat_at = now + BEAT_EVERY_S
        elif now >= self._beat_at:
            self._outbox.send(PilotBeat())
            self._beat_at = now + BEAT_EVERY_S


def log(text: str) -> None:
    """Into the log of the batch job, unless its disk is full."""
    with contextlib.suppress(OSError):  # ENOSPC
        os.write(sys.stdout.fileno(), f"pilot: {text}\n".encode())


def _first_session(folder: Path) -> Session | None:
    deadline = time.monotonic() + SESSION_PATIENCE_S
    while (session := read_session(folder)) is None and time.monotonic() < deadline:
        time.sleep(1.0)
    return session


def main() -> int:
    set_up_process()
    folder = Path(sys.argv[1])
    if (first := _first_session(folder)) is None:
        advice = "The run directory has to lie on a file system that all nodes share"
        print(
            f"pilot: {folder}/session.json cannot be read on {socket.gethostname()}. {advice}",
            file=sys.stderr,
        )
        return 1
    if first.ended:
        log("the run has ended")
        return 0
    pilot = Pilot(folder, os.environ)
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pilot.on_signal)
    session: str | None = first.session
    while session is not None:
        log(f"serves the supervisor of session {session}")
        session = pilot.serve(session)
    log("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
