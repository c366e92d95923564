"""The pilots as they join, report, hand back and end; and when Slurm is asked for more of them or
for fewer.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import ClusterLostError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.front_end import repeat_call
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.text import count
from orchestrator.executors.executor import (
    AttemptId,
    Event,
    Exited,
    Placed,
    Progressed,
    Sampled,
    amounts,
)
from orchestrator.features.slurm import accounting
from orchestrator.features.slurm.mailbox import Inbox, Outbox
from orchestrator.features.slurm.pilot_messages import (
    EndPilotOrder,
    PilotBye,
    PilotHello,
    PilotLeaving,
    SupervisorBeat,
)
from orchestrator.features.slurm.pilot_names import events_of, joined_pilots, orders_of, parsed_name
from orchestrator.features.slurm.pilot_slots import PilotSlots
from orchestrator.features.slurm.session_file import Session, read_session, write_session
from orchestrator.features.slurm.submission import BatchQueue
from orchestrator.machine.provenance import differences, installed_versions

LIST_EVERY_S = 0.5
BEAT_EVERY_S = 5.0
SUSPECT_AFTER_S = 6.0
"""Silence of a pilot after which Slurm is asked what has become of it."""
GIVE_UP_AFTER_S = 180.0
"""Silence after which it is given up, whatever Slurm says."""
IDLE_AFTER_S = 300.0
"""A pilot without an attempt for so long is ended, while nothing waits for room."""
DEMAND_S = 5.0
"""So long after a job was refused, more room is needed."""
CLOSE_S = 10.0
STARTED = ("RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING")
"""States of a pilot that has joined and is not gone."""


@dataclass(slots=True, kw_only=True, eq=False)
class JoinedPilot:
    name: str
    """See :mod:`.pilot_names`."""
    inbox: Inbox
    outbox: Outbox
    hello: PilotHello | None = None
    heard: float = field(default_factory=time.monotonic)
    idle_since: float = field(default_factory=time.monotonic)
    attempts: dict[AttemptId, int] = field(default_factory=dict)
    """Each with its cores."""
    leaves: str = ""
    """Why it takes no further launches; empty while it does."""

    @property
    def task(self) -> str:
        return parsed_name(self.name).task

    @property
    def began(self) -> int:
        return parsed_name(self.name).began


class PilotRegistry:
    """:param folder: of the session, where the messages are.
    :param cores: of a pilot that has not joined yet, as the job file says.
    """

    def __init__(self, *, folder: Path, queue: BatchQueue, slots: PilotSlots, cores: int) -> None:
        self.queue = queue
        self.slots = slots
        self._cores = cores
        self._folder = folder
        self._pilots: dict[str, JoinedPilot] = {}
        self._ended: set[str] = set()
        """Names of pilots that have ended or were given up."""
        self._excluded: list[str] = []
        """Why pilots are not used that were submitted by this supervisor, since one was used."""
        self._has_given_up = False
        """Whether a pilot may come back, and has to read that it must end."""
        self._began: dict[AttemptId, float] = {}
        """When attempts were placed."""
        self._core_s: dict[str, list[float]] = {}
        """Task → core seconds of each attempt there that has ended."""
        self._listings = Pacer(Pace(every_s=LIST_EVERY_S))
        self._beats = Pacer(Pace(every_s=BEAT_EVERY_S))
        self.is_closed = False
        """Whether the pilots have ended, or serve another supervisor."""

    @property
    def report(self) -> Callable[[str, str], None]:
        return self.queue.report

    @property
    def present(self) -> list[JoinedPilot]:
        return list(self._pilots.values())

    def get(self, name: str) -> JoinedPilot | None:
        """The pilot; None if it takes no launches, or not any more."""
        pilot = self._pilots.get(name)
        return None if pilot is None or pilot.leaves else pilot

    def update(self) -> list[Event]:
        """Read what pilots report, and ask Slurm where that is needed. Returns the events of
        attempts.

        :raises ClusterLostError: no pilot can run any more.
        """
        if self.is_closed:
            return []
        now = time.monotonic()
        events = list(self.receive())
        if self._beats.is_due(now):
            self._beats.wait(now=now)
            self._check_session()
            for pilot in self._pilots.values():
                pilot.outbox.send(SupervisorBeat())
        joined = [pilot for pilot in self._pilots.values() if not pilot.leaves]
        silent = [pilot for pilot in self._pilots.values() if now - pilot.heard > SUSPECT_AFTER_S]
        is_short = len(joined) < self.queue.wanted and self.slots.has_refused(DEMAND_S)
        self.queue.update(is_urgent=bool(silent) or is_short)
        for pilot in silent:
            events += self._judge_silent(pilot, now)
        if any(isinstance(event, Exited) and event.lost for event in events):
            # before the loss is recorded: perhaps the pilot serves another supervisor now
            self._check_session()
        self.queue.check(is_served=bool(self._pilots))
        self._provide(joined, now)
        return events

    def _check_session(self) -> None:
        """:raises ClusterLostError: another supervisor has begun a session, where locks of files do
        not hold it off.
        """
        current = read_session(self._folder.parent)
        if current is None or current.session == self._folder.name:
            return
        self.is_closed = True
        self.queue.wait()
        text = f"another supervisor has taken over the pilots of {self._folder.parent.parent}; this one ends"
        advice = "Run one at a time, where the file system has no locks over several login nodes"
        raise ClusterLostError(f"{text}. {advice}")

    def receive(self) -> Iterator[Event]:
        """The events of attempts that pilots have reported."""
        if self._listings.is_due():
            self._listings.wait()
            self._list()
        for pilot in self.present:
            yield from self._read(pilot)

    def _read(self, pilot: JoinedPilot) -> Iterator[Event]:
        """The events of attempts in what the pilot has written since the last call; what follows
        its last word is that again.
        """
        for message in pilot.inbox.receive() if pilot.name in self._pilots else ():
            if pilot.name in self._pilots:
                pilot.heard = time.monotonic()
                yield from self._take(pilot, message)

    def _list(self) -> None:
        names = set[str]()
        with contextlib.suppress(OSError):  # the file system is away for a moment
            names = joined_pilots(self._folder)
        for name in sorted(names):
            if name not in self._pilots and name not in self._ended:
                inbox = Inbox(events_of(self._folder, name))
                outbox = Outbox(orders_of(self._folder, name))
                self._pilots[name] = JoinedPilot(name=name, inbox=inbox, outbox=outbox)

    def _take(self, pilot: JoinedPilot, message: Any) -> Iterator[Event]:
        match message:
            case PilotHello() if pilot.hello is None:
                self._join(pilot, message)
                yield from self._end_earlier(pilot)
            case PilotLeaving(why):
                self._leave(pilot, why)
            case PilotBye():
                yield from self._end(
                    pilot, pilot.leaves or "its pilot has ended", ExitCode.INTERRUPTED
                )
            case Exited(attempt=attempt) if attempt in pilot.attempts:
                self._forget(pilot, attempt)
                pilot.idle_since = time.monotonic()
                yield message
            case Placed(attempt=attempt) | Progressed(attempt=attempt) | Sampled(attempt=attempt):
                if attempt in pilot.attempts:
                    self._began.setdefault(attempt, time.monotonic())
                    yield message

    def _forget(self, pilot: JoinedPilot, attempt: AttemptId) -> None:
        """An attempt that has ended."""
        now = time.monotonic()
        core_s = pilot.attempts.pop(attempt) * (now - self._began.pop(attempt, now))
        self._core_s.setdefault(pilot.task, []).append(core_s)

    def _end_earlier(self, pilot: JoinedPilot) -> Iterator[Event]:
        """Slurm has restarted a task: its earlier pilot is gone, or has to go."""
        for earlier in self.present:
            if earlier.task == pilot.task and earlier.began < pilot.began:
                yield from self._read(earlier)
                if earlier.name in self._pilots:
                    # It may run on where Slurm cannot reach its node.
                    earlier.outbox.send(EndPilotOrder())
                    self._has_given_up = True
                    why = f"its pilot {earlier.task} was restarted by Slurm"
                    yield from self._end(earlier, why, None)

    def _join(self, pilot: JoinedPilot, hello: PilotHello) -> None:
        pilot.hello = hello
        is_left = pilot.task in self.queue.joined
        self.queue.record_join(pilot.task)
        found = differences(installed_versions(), hello.versions)
        if found.deciding:
            why = f"pilot {pilot.task} on {hello.node}: {', '.join(found.deciding)}"
            if not is_left:
                self._excluded.append(why)
            self.report("warning", f"{why}; it would give other results, and is not used")
            self.release(pilot)
            if not is_left and self._are_any_used():
                self.queue.postpone("The others go on; further pilots are tried later")
            return
        self._excluded.clear()
        room = {"cores": hello.cores, "gpus": hello.gpus, "memory_mib": hello.memory_mib}
        self.slots.unfit = ""
        self.slots.add(pilot.name, **room, kind=hello.cpu_model)
        text = f"pilot {pilot.task} has joined on {hello.node}: {count(hello.cores, 'core')}"
        self.report("node", f"{text}, {count(hello.gpus, 'GPU')}, {hello.memory_mib} MiB")

    def _are_any_used(self) -> bool:
        return any(one.hello is not None and not one.leaves for one in self.present)

    def _leave(self, pilot: JoinedPilot, why: str) -> None:
        if not pilot.leaves:
            pilot.leaves = why
            self.slots.remove(pilot.name)

    def _end(self, pilot: JoinedPilot, why: str, returncode: int | None) -> Iterator[Event]:
        """:param returncode: of its attempts that have not ended: after its last word, they had
        never started.
        """
        self._leave(pilot, why)
        del self._pilots[pilot.name]
        self._ended.add(pilot.name)
        for attempt in list(pilot.attempts):
            self._forget(pilot, attempt)
            yield Exited(attempt, returncode, lost=why)

    def release(self, pilot: JoinedPilot) -> None:
        """Let a pilot end that has no attempts."""
        self.queue.record_release(pilot.task)
        self._leave(pilot, "its supervisor has ended its pilot")
        pilot.outbox.send(EndPilotOrder())

    def _judge_silent(self, pilot: JoinedPilot, now: float) -> list[Event]:
        """Give a pilot up that is gone by Slurm's word, or silent for too long.

        Should it come back, it reads that it has to end; and its workers end by themselves, as a
        later attempt of their job has a folder by then.
        """
        state = self.queue.state(pilot.task)
        is_known = self.queue.answer_began > pilot.heard + SUSPECT_AFTER_S / 2
        is_gone = is_known and state not in STARTED
        if not is_gone and (
            now - pilot.heard < GIVE_UP_AFTER_S or state in ("SUSPENDED", "STOPPED")
        ):
            return []
        how = f"is silent for {now - pilot.heard:.0f} s"
        if is_gone:
            how = f"has ended ({state or 'unknown to Slurm'})"
        why = f"its pilot {pilot.task} {how}"
        pilot.outbox.send(EndPilotOrder())
        if not is_gone:
            text = f"pilot {pilot.task} {how}, and is given up. Its jobs continue in other pilots"
            self.report("warning", text)
            # Slurm may have restarted its task on a node whose clock is behind, so that it seems to
            # be the earlier one.
            if not any(other.task == pilot.task for other in self.present if other is not pilot):
                self.queue.cancel(pilot.task)
            self._has_given_up = True
        return list(self._end(pilot, why, None))

    def _provide(self, joined: list[JoinedPilot], now: float) -> None:
        """Submit pilots that are missing while jobs wait for room, and end those that are idle
        while none does.
        """
        if self._excluded and len(self._excluded) >= self.queue.pilots and not self._pilots:
            advice = f"Correct it (setup in [slurm]), and {repeat_call()}"
            raise ClusterLostError(f"no pilot can be used: {'; '.join(self._excluded)}. {advice}")
        needs_room = self.slots.has_refused(DEMAND_S)
        if needs_room and self.slots.unfit and len(joined) >= self.queue.wanted:
            self._refuse_unfit(joined)
        self.slots.expected_cores = max(0, self.queue.wanted - len(joined)) * self._cores
        if needs_room:
            if missing := self.queue.missing:
                self.queue.submit(missing)
        elif not self.slots.has_refused(IDLE_AFTER_S):
            idle = [
                one for one in joined if not one.attempts and now - one.idle_since > IDLE_AFTER_S
            ]
            for pilot in idle:
                self.release(pilot)
            if joined:
                self.queue.cancel_waiting()

    def _refuse_unfit(self, joined: list[JoinedPilot]) -> None:
        """:raises ClusterLostError: nothing runs, and no pilot has room for what waits."""
        hellos = [pilot.hello for pilot in joined if pilot.hello is not None]
        if not joined or len(hellos) < len(joined) or any(pilot.attempts for pilot in joined):
            return
        largest = max(hellos, key=lambda hello: (hello.gpus, hello.cores, hello.memory_mib))
        has = amounts(largest.cores, largest.gpus, largest.memory_mib)
        advice = f"Raise cpus_per_task, mem or gpus in [slurm], and {repeat_call()}"
        raise ClusterLostError(
            f"a job asks for {self.slots.unfit}, and the largest pilot has {has}. {advice}"
        )

    def close(self) -> None:
        """End all pilots, and take those that wait out of the queue."""
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(OSError):  # then those that start find no supervisor
            ended = Session(session=self._folder.name, batch_jobs=self.queue.name, ended=True)
            write_session(self._folder.parent, ended)
        for pilot in self.present:
            self.release(pilot)
        deadline = time.monotonic() + CLOSE_S
        while self._pilots and time.monotonic() < deadline:
            list(self.receive())
            time.sleep(0.05)
        if (problem := self.queue.close()) is not None:
            advice = f"`scancel --name={self.queue.name}` ends pilots that still wait; they also end when they start"
            self.report("warning", f"scancel failed ({problem}). {advice}")
        self._account()
        if not (self._pilots or self._has_given_up):
            shutil.rmtree(self._folder, ignore_errors=True)

    def _account(self) -> None:
        """Write down what the pilots have cost, and report it."""
        rows = accounting.collect(self.queue.joined, self._core_s)
        if not rows:
            return
        file = self._folder.parent / accounting.FILE
        try:
            accounting.write(self._folder.parent, rows)
        except OSError as error:
            text = f"what the pilots have cost is not recorded: {error.strerror or error}"
            self.report("warning", f"{file}: {text}")
            return
        self.report("accounted", accounting.sentence(rows, file))
