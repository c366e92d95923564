"""What must hold at every moment of a simulated world, whatever troubles it has.

The monitor reads the events, the answers, the jobs and the attempts of the ledger after each commit,
and sees what workers do. None of its rules asks the supervisor whether they hold.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from orchestrator.core.job import Job, Resources
from orchestrator.core.paths import RunPaths
from orchestrator.executors.executor import AttemptId
from orchestrator.server.requests import Request
from tests.simulation.machine import SAMPLE_EVERY_S, VERSION, Machine, SimulatedExecutor, Worker
from tests.simulation.scenario import STEPS
from tests.simulation.world import Violation, World

MOVES = {
    "PENDING": ("PENDING", "RUNNING", "PAUSED", "FAILED", "CANCELLED"),
    "RUNNING": ("SUCCEEDED", "FAILED", "CANCELLED", "PENDING", "PAUSED"),
    "PAUSED": ("PENDING", "CANCELLED", "PAUSED"),
    "FAILED": ("PENDING",),
    "CANCELLED": ("PENDING",),
    "SUCCEEDED": (),
}
OVER = ("SUCCEEDED", "FAILED", "CANCELLED")
COUNTED = ("killed", "out-of-memory", "stalled", "launch-failed", "rank-lost")
"""Causes that use up a retry."""
NOT_FAILURES = ("interrupted", "supervisor-died", "disk-full")
EVENTS = {
    "cancelled": "CANCELLED",
    "retrying": "PENDING",
    "promoted": "PENDING",
    "failed": "FAILED",
    "restarted": "PENDING",
}
"""States that events tell of which do not name one."""
CAUSES: Mapping[str, str | None] = {
    "done": None,
    "error": "error",
    "diverged": "diverged",
    "killed": "killed",
    "oom": "out-of-memory",
    "silent": "error",
    "garbled": "error",
    "leaves": "killed",
    "node-lost": "node-lost",
    "rank-fails": "error",
    "refused": "launch-failed",
    "refused-odd": "launch-failed",
}
"""Of attempts that end by themselves."""
WANTED = {"cancel": "cancel", "pause": "pause", "resume": "run", "retry": "run"}
LATE_S = 1.0
"""How much later than a limit says an attempt may end: turns of the loop, and a sample."""
IDLE_S = 4.0
"""So long a job that may be launched, and has room, may wait."""
ANSWER_S = 3.0
Row: TypeAlias = "dict[str, Any]"


@dataclass(slots=True, kw_only=True)
class LeftRequest:
    """A request that a client has left."""

    id: str
    request: Request
    client: str
    holder: str
    """The supervisor that lived then."""
    left_at: float
    is_first: bool = False
    """Whether it adds the jobs of a run that begins."""
    is_withdrawn: bool = False
    is_told: bool = False
    """Whether its client knows the answer."""


@dataclass(slots=True)
class JobFacts:
    """What the monitor has found out about a job."""

    wanted: str = "run"
    counted: int = 0
    """Attempts that have used up a retry, since the job was last queued by its user."""
    losses: int = 0
    ready_at: float = -math.inf
    """Monotonic time before which it is not launched again."""


@dataclass(slots=True)
class Snapshot:
    """What was committed at some time, and what the monitor knew then."""

    cursor: int
    rows: dict[str, Row]
    attempts: dict[tuple[str, int], Row]
    facts: dict[str, JobFacts]
    answers: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Monitor:
    world: World
    machine: Machine
    paths: RunPaths
    holder: str = ""
    """The supervisor that lives, or lived last."""
    requests: dict[str, LeftRequest] = field(default_factory=dict)
    damaged: dict[str, float] = field(default_factory=dict)
    """Files that are no requests, with the time when they came."""
    results_removed: set[str] = field(default_factory=set)
    cursor: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    """Jobs as they were committed last."""
    attempts: dict[tuple[str, int], Row] = field(default_factory=dict)
    facts: dict[str, JobFacts] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """The error of each answer, by the id of its request."""
    to_adopt: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Fingerprint and state of jobs whose directories say what has become of them, when the ledger
    was lost."""
    late_s: float = 0.0
    """The longest delay of a message."""
    polled_at: float = 0.0
    """Monotonic time of the last events."""
    launched_at: float = 0.0
    """Monotonic time of the events before these: what was launched then is committed now."""
    began: float = 0.0
    """When the supervisor that lives was started."""
    is_launching: bool = False
    """Whether the first addition of this run was accepted."""
    is_refused: bool = False
    stops: int = 0
    stop_by: float = math.inf
    is_released: bool = False
    _excused: set[tuple[AttemptId, str]] = field(default_factory=set)
    """Attempts that may be asked to end, or be killed, with the reason."""
    _is_recovering: bool = True
    _could_since: dict[str, float] = field(default_factory=dict)
    """When jobs came to be launchable that have not been launched."""
    _snapshots: list[Snapshot] = field(default_factory=list)

    # -- lives

    def life_begins(self, holder: str) -> None:
        self.holder = holder
        self.began = self.world.now
        self.is_launching = self.is_refused = self.is_released = False
        self.stops = 0
        self.stop_by = math.inf
        self._is_recovering = True
        self._could_since.clear()
        for facts in self.facts.values():
            facts.ready_at = -math.inf

    def offline_begins(self) -> None:
        self._is_recovering = True

    def ledger_was_lost(self) -> None:
        """What was in the ledger is gone; job directories and the summary are there."""
        summary = {}
        if self.paths.summary_json.exists() and self.paths.summary_json.read_bytes():
            rows = json.loads(self.paths.summary_json.read_bytes())
            summary = {row["job_id"]: row["state"] for row in rows}
        for job_id, row in self.rows.items():
            has_results = self.paths.job(job_id).model.exists()
            is_known = row["state"] == "SUCCEEDED" and has_results
            is_known |= row["state"] in ("PAUSED", "CANCELLED") and row["cause"] is None
            is_there = self.paths.job(job_id).spec.exists()
            if is_known and is_there and summary.get(job_id) == row["state"]:
                self.to_adopt[job_id] = (row["fingerprint"], row["state"])
        self.forget()

    def forget(self) -> None:
        for left in self.requests.values():
            left.is_withdrawn |= not (self.paths.requests / f"{left.id}.json").exists()
        self.cursor = 0
        self.rows, self.attempts, self.facts = {}, {}, {}
        self.answers.clear()
        self._snapshots.clear()

    def power_failed(self, connection: sqlite3.Connection) -> None:
        """Go back to the commit that is left."""
        rows, attempts = self._read(connection)
        cursor = connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]
        self.clients_died()
        while self._snapshots:
            last = self._snapshots[-1]
            if (last.cursor, last.rows, last.attempts) == (cursor, rows, attempts):
                self.cursor, self.rows, self.attempts = cursor, rows, attempts
                self.facts, self.answers = copy.deepcopy(last.facts), dict(last.answers)
                return
            self._snapshots.pop()
        self._claim(not rows and not cursor, "the ledger holds what was never committed")
        self.forget()

    def clients_died(self) -> None:
        """The power has failed: nobody waits for an answer, and files may be gone or empty."""
        for left in self.requests.values():
            left.client = "dies"
            path = self.paths.requests / f"{left.id}.json"
            left.is_withdrawn |= not path.exists() or not path.stat().st_size
        done = {job_id: one for job_id, one in self.to_adopt.items() if one[1] == "SUCCEEDED"}
        self.to_adopt = done  # the summary that says the rest need not be on the disk

    # -- after each commit

    def _read(
        self, connection: sqlite3.Connection
    ) -> tuple[dict[str, Row], dict[tuple[str, int], Row]]:
        read = functools.partial(sqlite3.Connection.execute, connection)
        jobs = read(
            "SELECT job_id, state, failures, cause, attempts, env_steps, wanted, spec, resources,"
            " max_retries, fingerprint FROM jobs JOIN declared USING (job_id)"
        )
        rows = {row["job_id"]: dict(row) for row in jobs}
        tried = read("SELECT job_id, number, pid, cause, returncode, record FROM attempts")
        return rows, {(row["job_id"], row["number"]): dict(row) for row in tried}

    def committed(self, connection: sqlite3.Connection) -> None:
        read = functools.partial(sqlite3.Connection.execute, connection)
        sql = "SELECT id, kind, job_id, facts FROM events WHERE id > ? ORDER BY id"
        events = [dict(row) for row in read(sql, (self.cursor,))]
        for event in events:
            event["facts"] = json.loads(event["facts"])
        rows, attempts = self._read(connection)
        answered = [event["facts"]["request"] for event in events if event["kind"] == "answer"]
        answered = [id_ for id_ in answered if id_ not in self.damaged]
        errors = {}
        for id_ in answered:
            found = read("SELECT answer FROM answers WHERE id = ?", (id_,)).fetchone()
            self._claim(found is not None, f"the answer to {id_} is not recorded")
            errors[id_] = json.loads(found["answer"])["error"]
            self._claim(id_ not in self.answers, f"request {id_} is answered twice")
            self.answers[id_] = errors[id_]
        is_entering = any(
            not error and self.requests[id_].request.verb == "add" for id_, error in errors.items()
        )
        if events and all(
            event["kind"] == "answer" and errors.get(event["facts"]["request"]) for event in events
        ):
            self._claim(
                self._is_recovering or self._same_states(rows), "a refused request has changed jobs"
            )
        for job_id in [job_id for job_id in self.rows if job_id not in rows]:
            self._claim(is_entering, f"{job_id} is gone")
            self.facts.pop(job_id, None)
        restarted = {event["job_id"] for event in events if event["kind"] == "restarted"}
        for job_id in restarted:
            self.facts.pop(job_id, None)
        for id_, error in errors.items():
            self._take_answer(self.requests[id_], error, rows)
        for job_id, row in rows.items():
            of_job = [event for event in events if event["job_id"] == job_id]
            self._look_at_job(job_id, row, attempts, of_job, is_entering=is_entering)
        self.cursor = events[-1]["id"] if events else self.cursor
        self.rows, self.attempts = rows, attempts
        for id_, error in errors.items():
            if self.requests[id_].request.verb == "add" and not error:
                self._look_at_entered(self.requests[id_].request.args["jobs"])
        self._look_at_wanted()
        self._is_recovering = False
        if any(trouble.kind == "power" for trouble in self.world.scenario.troubles):
            facts = copy.deepcopy(self.facts)
            snapshot = Snapshot(self.cursor, rows, attempts, facts, dict(self.answers))
            self._snapshots.append(snapshot)

    def _same_states(self, rows: Mapping[str, Row]) -> bool:
        def kept(of: Mapping[str, Row]) -> Any:
            names = ("state", "wanted", "spec", "max_retries")
            return {job_id: [row[name] for name in names] for job_id, row in of.items()}

        return bool(kept(rows) == kept(self.rows))

    def _take_answer(self, left: LeftRequest, error: str, rows: Mapping[str, Row]) -> None:
        request = left.request
        if request.verb == "add" and request.supervisor in (None, self.holder):
            self.is_refused |= bool(error) and not self.is_launching
            self.is_launching |= not error
        if error:
            return
        if request.verb == "stop":
            self._claim(self.holder == request.supervisor, "a stop ends another supervisor")
            for _ in range(2 if request.args.get("now") else 1):
                self.asked_to_stop()
        elif request.verb == "release":
            self.is_released = True
        elif request.verb in WANTED:
            self._claim(
                all(job_id in rows for job_id in request.jobs), "a verb is applied to no job"
            )
            for job_id in request.jobs:
                self._take_verb(job_id, request)

    def _take_verb(self, job_id: str, request: Request) -> None:
        facts = self.facts.setdefault(job_id, JobFacts())
        if "pause_at" in request.args:
            return
        facts.wanted = WANTED[request.verb]
        if request.verb == "retry":
            facts.counted = 0
        if request.verb in ("cancel", "pause"):
            for worker in self.machine.alive:
                if worker.id.job_id == job_id:
                    self.excuse(worker.id, "held")

    def asked_to_stop(self) -> None:
        """A stop is accepted, by a request, a signal, or because the client is gone."""
        self.stops += 1
        grace_s = self.world.scenario.grace_s if self.stops == 1 else 0.0
        self.stop_by = min(self.stop_by, self.world.now + grace_s)

    def excuse(self, attempt: AttemptId, reason: str) -> None:
        self._excused.add((attempt, reason))

    # -- jobs

    def _look_at_job(
        self,
        job_id: str,
        row: Row,
        attempts: Mapping[tuple[str, int], Row],
        events: list[Row],
        *,
        is_entering: bool,
    ) -> None:
        before = self.rows.get(job_id)
        facts = self.facts.setdefault(job_id, JobFacts())
        path = ["PENDING" if before is None else before["state"]]
        if any(event["kind"] in ("restarted", "adopted") for event in events):
            path = ["PENDING"]
            before = None
            facts.wanted = row["wanted"]
        elif is_entering and before is not None and not before["attempts"]:
            path = ["PENDING"]  # it is entered anew
        numbers = sorted(number for of_job, number in attempts if of_job == job_id)
        open_ = [number for number in numbers if _is_open(attempts[job_id, number])]
        self._claim(len(open_) <= 1, f"{job_id} has several attempts at once")
        is_begun = before is not None and row["attempts"] > before["attempts"]
        expected = ""
        for number in numbers:
            last = self.attempts.get((job_id, number))
            attempt = attempts[job_id, number]
            if last is not None and _is_open(last) and not _is_open(attempt):
                expected = self._look_at_end(AttemptId(job_id, number), attempt, row, facts)
        if is_begun:
            assert before is not None
            self._look_at_begin(job_id, row, before, facts)
            path.append("RUNNING")
            self._claim(bool(open_), f"{job_id} has begun without an attempt")
            # One of the same number may be that of a job that has started over.
            self.machine.latest.pop(AttemptId(job_id, row["attempts"] - 1), None)
        for event in events:
            state = event["facts"].get("state") or EVENTS.get(event["kind"])
            if event["kind"] == "resumed":
                state = "PENDING"
            if state is not None and event["kind"] != "restarted":
                path.append(state)
        for old, new in itertools.pairwise(path):
            is_adopted = before is None
            self._claim(is_adopted or new in MOVES[old], f"{job_id}: {old} has become {new}")
        self._look_at_state(job_id, row, before, path, expected, is_entering=is_entering)
        if before is not None and before["state"] in OVER and row["state"] == "PENDING":
            facts.counted = 0
        if row["state"] in ("PENDING", "RUNNING"):
            is_right = row["failures"] == facts.counted
            self._claim(is_right, f"{job_id} has {row['failures']} failures, not {facts.counted}")
        if row["state"] != "PENDING":
            facts.ready_at = -math.inf
        is_running = row["state"] == "RUNNING"
        self._claim(is_running == bool(open_), f"{job_id} is {row['state']}, attempts {open_} run")

    def _look_at_begin(self, job_id: str, row: Row, before: Row, facts: JobFacts) -> None:
        self._claim(
            before["state"] == "PENDING", f"{job_id} is launched, and was {before['state']}"
        )
        self._claim(facts.wanted == "run", f"{job_id} is launched, and its user wants it not")
        self._claim(
            self.world.monotonic >= facts.ready_at - 0.01,
            f"{job_id} is launched before its back-off ends",
        )
        missing = self._missing_parents(before)
        self._claim(not missing, f"{job_id} is launched before {missing}")
        self._claim(self.is_launching, f"{job_id} is launched before it was compared")
        is_held_up = self.world.disturbed_at == self.world.now  # the stop came while it waited
        self._claim(not self.stops or is_held_up, f"{job_id} is launched although the run stops")

    def _missing_parents(self, row: Row) -> list[str]:
        if row["attempts"]:
            return []
        parents = spec_of(row)["after"]
        return [
            parent
            for parent in parents
            if parent in self.rows and self.rows[parent]["state"] != "SUCCEEDED"
        ]

    def _look_at_end(self, id_: AttemptId, attempt: Row, row: Row, facts: JobFacts) -> str:
        """Return the state that a job has to have after this attempt, whatever its user wants."""
        cause = attempt["cause"]
        worker = self.machine.latest.get(id_)
        if worker is not None and not self._is_recovering:
            self._look_at_cause(id_, worker, cause)
        if cause is None:
            is_right = worker is None or worker.is_finished
            self._claim(is_right, f"{id_.job_id} counts as trained, and is not")
            return "SUCCEEDED"
        if cause == "cancelled":
            return "CANCELLED"
        if cause in ("paused", "rung"):
            return "PAUSED" if cause == "paused" else "RUNG"
        if cause in NOT_FAILURES:
            self.world.has_erred |= cause == "disk-full"
            return "PENDING"
        if cause == "node-lost":
            facts.losses += 1
            facts.ready_at = self.polled_at + min(2.0 ** (facts.losses - 1), 60.0)
            return "PENDING"
        if cause in COUNTED and facts.counted < row["max_retries"]:
            facts.counted += 1
            if not self._is_recovering:
                ended_at = self.launched_at if cause == "launch-failed" else self.polled_at
                facts.ready_at = ended_at + min(2.0 ** (facts.counted - 1), 60.0)
            return "PENDING"
        return "FAILED"

    def _look_at_cause(self, id_: AttemptId, worker: Worker, cause: str | None) -> None:
        """The cause is what has happened to the worker."""
        ending = worker.behaviour.ending
        by_itself = not worker.was_cancelled
        if worker.is_finished and worker.code == 0:
            self._claim(cause is None, f"{id_.job_id} was trained, and counts as {cause}")
        elif by_itself and worker.code == 12:
            self._claim(cause == "disk-full", f"{id_.job_id}: the disk is full, and not {cause}")
        elif by_itself and worker.code == 15:
            self._claim(cause == "rung", f"{id_.job_id} is at its rung, and not {cause}")
        elif by_itself and worker.code is not None and ending in CAUSES:
            right = CAUSES[ending]
            self._claim(cause == right, f"{id_.job_id} has ended as {right}, and not {cause}")

    def _look_at_state(
        self,
        job_id: str,
        row: Row,
        before: Row | None,
        path: list[str],
        expected: str,
        *,
        is_entering: bool,
    ) -> None:
        """The state is that of the last event, and what follows from the last attempt."""
        state = row["state"]
        wanted = self.facts[job_id].wanted
        if expected == "RUNG":
            is_right = state in (_wanted_state("PAUSED", wanted), "PAUSED") or "PENDING" in path
            self._claim(is_right, f"{job_id} is at its rung, and {state}")
        elif before is not None and before["state"] == "RUNNING" and self._is_recovering:
            allowed = {expected, _wanted_state(expected, wanted)}
            self._claim(
                state in allowed or is_entering, f"{job_id} was {expected}, and is now {state}"
            )
        elif expected:
            after = _wanted_state(expected, wanted)
            if wanted == "cancel" and expected == "FAILED":  # its user no longer wants it
                after = "CANCELLED"
            is_right = state == after or (after in path and state == path[-1])
            self._claim(is_right or is_entering, f"{job_id} has to be {after}: {state}")
        if path[-1] == state or (self._is_recovering and path[-1] == "RUNNING"):
            return
        self._claim(is_entering, f"{job_id} is {state}, its events say {path}")
        job = self.machine.jobs[job_id]
        spec = spec_of(row)
        is_longer = before is None or spec["total_timesteps"] > spec_of(before)["total_timesteps"]
        match path[-1], state:
            case "SUCCEEDED", "PENDING":
                is_right = is_longer or job_id in self.results_removed
            case "CANCELLED", "PENDING":
                is_right = job.is_declared
            case (("PENDING" | "PAUSED"), "CANCELLED"):
                is_right = not job.is_declared
            case "FAILED", "PENDING":
                is_right = row["attempts"] == 0
            case "PENDING", "FAILED":
                resources = Resources(**_parsed(row["resources"]))
                is_right = job.is_invalid or resources.all_cores > self.world.scenario.cpus
            case _:
                is_right = False
        is_new = before is None or not before["attempts"]
        is_right |= is_new and path[-1] == "PENDING" and state == _wanted_state("PENDING", wanted)
        self._claim(is_right, f"{job_id} was {path[-1]}, and enters as {state}")

    def _look_at_entered(self, added: Sequence[Mapping[str, Any]]) -> None:
        """What was added is there as it is declared; the rest is gone, or cancelled."""
        for values in added:
            row = self.rows.get(values["job_id"])
            self._claim(row is not None, f"{values['job_id']} was added, and is not there")
            assert row is not None
            spec = spec_of(row)
            for name in ("total_timesteps", "env_kwargs"):
                is_same = spec.get(name) == values["spec"].get(name)
                self._claim(
                    is_same or self.machine.jobs[row["job_id"]].is_invalid,
                    f"{row['job_id']} was added with another {name}",
                )
            if row["job_id"] in self.to_adopt:
                fingerprint, state = self.to_adopt.pop(row["job_id"])
                is_right = row["state"] == state or row["fingerprint"] != fingerprint
                self._claim(
                    is_right, f"{row['job_id']} was {state} in its directory: {row['state']}"
                )
                if state != "SUCCEEDED" and is_right and row["state"] == state:
                    self.facts[row["job_id"]].wanted = row["wanted"]
        self.to_adopt.clear()

    def _look_at_wanted(self) -> None:
        """What users were told about their jobs is true."""
        for job_id, row in self.rows.items():
            facts = self.facts[job_id]
            if row["state"] in ("SUCCEEDED", "FAILED") and row["wanted"] == "run":
                facts.wanted = "run"  # what the user wanted came too late
            is_noted = row["wanted"] == facts.wanted
            self._claim(is_noted, f"{job_id}: wanted {facts.wanted}, noted {row['wanted']}")
            if row["state"] == "RUNNING" or row["cause"] == "rung":
                continue
            if self._is_recovering or not self.is_launching:
                continue
            right = _wanted_state(row["state"], facts.wanted)
            self._claim(
                row["state"] == right, f"{job_id} is {row['state']}; wanted: {facts.wanted}"
            )

    # -- attempts

    def submitted(self, id_: AttemptId, job: Job, running: int) -> None:
        row = self.rows[id_.job_id]
        attempt = self.attempts.get((id_.job_id, id_.number))
        is_noted = row["state"] == "RUNNING" and attempt is not None and _is_open(attempt)
        self._claim(is_noted, f"{id_.job_id} is launched before that is recorded")
        others = [worker for worker in self.machine.alive if worker.id.job_id == id_.job_id]
        self._claim(not others, f"{id_.job_id} is trained twice at once")
        spec = spec_of(row)
        read = json.loads(self.paths.job(id_.job_id).spec.read_bytes())
        for name in ("total_timesteps", "env_kwargs"):
            self._claim(spec.get(name) == read.get(name), f"{id_.job_id} reads another {name}")
        stale = self.paths.job(id_.job_id).attempt(id_.number).exits()
        self._claim(not stale, f"{id_.job_id} begins with the exit record of another attempt")
        limit = self.machine.limit
        self._claim(running < limit, f"{running + 1} jobs run at once, and {limit} may")
        asked_mib = job.resources.min_free_disk_mib
        is_short = self.world.free_mib is not None and self.world.free_mib < asked_mib
        is_long = self.world.now - self.world.short_since > LATE_S + 0.5
        self._claim(not (is_short and is_long), f"{id_.job_id} is launched without disk space")

    def killed(self, worker: Worker) -> None:
        """A worker is killed by its supervisor: is there a reason?"""
        now = self.world.now
        grace_s = self.world.scenario.grace_s
        resources = worker.job.resources
        is_silent = now - worker.heard_at > resources.stall_timeout_s - 0.01
        has_reason = (
            (worker.asked_at is not None and now - worker.asked_at >= grace_s - 0.01)
            or grace_s == 0.0
            or self._stops_asked() + self.world.has_erred > 1
            or worker.grew_at is not None
            or (worker.is_placed and is_silent)
            or (worker.id, "odd") in self._excused
        )
        self._claim(has_reason, f"{worker.id.job_id} is killed without its grace time")

    def _stops_asked(self) -> int:
        """Return how often the supervisor was asked to stop, also by requests not answered yet."""
        asked = [
            2 if left.request.args.get("now") else 1
            for id_, left in self.requests.items()
            if left.request.verb == "stop"
            and left.request.supervisor == self.holder
            and id_ not in self.answers
        ]
        return self.stops + sum(asked)

    # -- turns

    def polled(self, monotonic: float) -> None:
        self.launched_at = self.polled_at
        self.polled_at = monotonic

    def turn(self, executor: SimulatedExecutor) -> None:
        """The supervisor waits for events: what is overdue?"""
        now = self.world.now
        for worker in self.machine.alive:
            if not worker.is_orphan:
                self._look_at_limits(worker, now)
        slack_s = LATE_S + self.late_s
        stop_by = max(self.stop_by, self._undisturbed(self.world.scenario.grace_s))
        self._claim(now <= stop_by + slack_s, "a stop is not obeyed")
        for id_, left in self.requests.items():
            if id_ in self.answers or left.is_withdrawn or left.holder == "":
                continue
            is_there = (self.paths.requests / f"{id_}.json").exists()
            self._claim(is_there, f"{left.request.verb} {id_} is lost")
            since = max(left.left_at, self.began, self._undisturbed())
            adds = sum(other.request.verb == "add" for other in self.requests.values())
            self._claim(
                now - since <= ANSWER_S + adds, f"{left.request.verb} {id_} is not answered"
            )
        for id_, came_at in self.damaged.items():
            is_there = (self.paths.requests / f"{id_}.json").exists()
            since = max(came_at, self.began, self._undisturbed())
            self._claim(not is_there or now - since <= ANSWER_S, f"{id_} is not set aside")
        self._look_for_idleness(executor, now)

    def _undisturbed(self, more_s: float = 0.0) -> float:
        """Return since when nothing has held the supervisor up."""
        world = self.world
        if world.is_full or world.is_failing:
            return world.now + more_s
        return max(world.disturbed_at, min(world.locked_until, world.now)) + more_s

    def _look_at_limits(self, worker: Worker, now: float) -> None:
        job_id = worker.id.job_id
        resources = worker.job.resources
        grace_s = self.world.scenario.grace_s
        slack_s = LATE_S + self.late_s
        excused_at = self._undisturbed(grace_s)
        if worker.asked_at is not None:
            by = max(worker.asked_at + grace_s, excused_at) + slack_s
            self._claim(now <= by, f"{job_id} trains on after it was asked to end")
            is_late = now - worker.began > resources.timeout_s - 0.01
            is_excused = any(id_ == worker.id for id_, _ in self._excused)
            has_reason = self.stops or is_excused or is_late or self.world.has_erred
            self._claim(bool(has_reason), f"{job_id} is asked to end, and nobody wants that")
        if not worker.is_placed:
            return
        by = max(worker.began + resources.timeout_s + grace_s, excused_at) + slack_s
        self._claim(now <= by, f"{job_id} is over its timeout")
        by = max(worker.heard_at + resources.stall_timeout_s, excused_at) + slack_s
        self._claim(now <= by + grace_s, f"{job_id} hangs")
        if worker.grew_at is not None:
            samples = 1 + self.world.counts["lost"]
            by = max(worker.grew_at + samples * SAMPLE_EVERY_S, excused_at) + slack_s
            self._claim(now <= by, f"{job_id} is over its memory limit")

    def _look_for_idleness(self, executor: SimulatedExecutor, now: float) -> None:
        """Something happens as long as something can."""
        may_launch = (
            self.is_launching and not (self.stops or self.is_refused) and not self.world.has_erred
        )
        could: dict[str, float] = {}
        for job_id, row in self.rows.items():
            is_due = row["state"] == "PENDING" and not self._missing_parents(row)
            is_ready = self.world.monotonic >= self.facts[job_id].ready_at
            resources = Resources(**_parsed(row["resources"]))
            has_room = executor.has_room(resources) and executor.running < self.machine.limit
            if may_launch and is_due and is_ready and has_room:
                since = max(self._could_since.get(job_id, now), self._undisturbed())
                could[job_id] = max(since, self.world.short_until)
        self._could_since = could
        idle = [job_id for job_id, since in could.items() if now - since > IDLE_S + self.late_s]
        self._claim(not idle, f"{idle} may be launched, and nothing happens")

    # -- ends

    def life_ended(self, exit_code: int, *, has_failed: bool) -> None:
        """A supervisor has ended by itself: ledger, summary and exit code say the same."""
        alive = [worker.id.job_id for worker in self.machine.alive if not worker.is_orphan]
        self._claim(not alive, f"the supervisor has ended, and these train: {alive}")
        if has_failed:
            return
        still_there = [
            id_
            for id_ in self.answers
            if self.requests[id_].client in ("here", "elsewhere")  # others may bring it back
            and (self.paths.requests / f"{id_}.json").exists()
        ]
        self._claim(not still_there, f"answered, and still there: {still_there}")
        states = {job_id: row["state"] for job_id, row in self.rows.items()}
        self._claim("RUNNING" not in states.values(), f"the run has ended: {states}")
        rows = json.loads(self.paths.summary_json.read_bytes()) if states else []
        summary = {row["job_id"]: row["state"] for row in rows}
        self._claim(summary == states, f"summary.json has {summary}, the ledger {states}")
        right = self._exit_code()
        is_free = self.is_refused or not self.is_launching
        self._claim(exit_code == right or is_free, f"exit code {exit_code}, not {right}: {states}")
        held_s = self.world.scenario.held_s
        is_held = bool(held_s) and not self.is_released and not self.stops and not self.is_refused
        self._claim(not is_held, "the run has ended, and its client holds it open")
        for job_id, row in self.rows.items():
            if row["state"] == "SUCCEEDED" and job_id not in self.results_removed:
                self._look_at_results(job_id, row)
        if not (self.stops or self.is_refused):
            self._look_at_rest()

    def _exit_code(self) -> int:
        left_out = ("rung", "undeclared")
        names = {row["state"] for row in self.rows.values() if row["cause"] not in left_out}
        if self.stops and "PENDING" in names:
            return 130
        if names & {"FAILED", "CANCELLED"}:
            return 1
        if "PAUSED" in names:
            return 130
        return 1 if "PENDING" in names else 0

    def _look_at_results(self, job_id: str, row: Row) -> None:
        spec = spec_of(row)
        steps = spec["total_timesteps"]
        text = f"{job_id} {steps} {spec.get('env_kwargs', {}).get(VERSION, 0)}"
        model = self.paths.job(job_id).model
        has_results = model.exists() and model.read_text() == text
        # A supervisor that dies while it lets a job start over has set its directory aside.
        is_aside = not model.exists() and any(self.paths.replaced.glob(f"{job_id}.*"))
        self._claim(has_results or is_aside, f"{job_id} has SUCCEEDED without its results")
        self._claim(row["env_steps"] == steps, f"{job_id}: env_steps {row['env_steps']}")

    def _look_at_rest(self) -> None:
        """No job is left that could be trained."""
        for job_id, row in self.rows.items():
            if row["state"] == "PENDING":
                missing = self._missing_parents(row)
                self._claim(bool(missing), f"{job_id} is not trained, and nothing keeps it")
            elif row["state"] == "PAUSED" and row["cause"] != "rung":
                is_meant = self.facts[job_id].wanted == "pause"
                self._claim(is_meant, f"{job_id} is paused, and nobody has asked for that")

    def recorded_pids(self) -> set[int]:
        return {row["pid"] for row in self.attempts.values() if _is_open(row)}

    def _claim(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(otherwise)


def _is_open(attempt: Row) -> bool:
    return attempt["cause"] is None and attempt["returncode"] is None


def _wanted_state(state: str, wanted: str) -> str:
    """Return the state to which a job without an attempt is brought by its user."""
    if wanted == "cancel" and state in ("PENDING", "PAUSED"):
        return "CANCELLED"
    if wanted == "pause" and state == "PENDING":
        return "PAUSED"
    if wanted == "run" and state == "PAUSED":
        return "PENDING"
    return state


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(text)
    return values


def spec_of(row: Row) -> dict[str, Any]:
    """Return the declaration of a job."""
    return {"after": (), "total_timesteps": STEPS, **_parsed(row["spec"])}
