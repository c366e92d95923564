"""What must hold at every moment of a simulated world, whatever troubles it has.

After each commit the monitor applies the events to what it knew of the jobs, in order, and compares
the result with the ledger. It also sees what workers do. None of its rules asks the supervisor
whether they hold.
"""

from __future__ import annotations

import functools
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
AFTER = {
    None: "SUCCEEDED",
    "cancelled": "CANCELLED",
    "paused": "PAUSED",
    "rung": "PAUSED",
    "interrupted": "PENDING",
    "supervisor-died": "PENDING",
    "disk-full": "PENDING",
    "node-lost": "PENDING",
}
"""The state that follows from the cause of an attempt's end. After other causes it is FAILED, unless
they count and retries are left.
"""
EVENTS = {
    "cancelled": "CANCELLED",
    "retrying": "PENDING",
    "promoted": "PENDING",
    "failed": "FAILED",
    "resumed": "PENDING",
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
JOBS = """
SELECT job_id, state, failures, cause, attempts, env_steps, wanted, spec, resources, max_retries, fingerprint,
    (SELECT count(*) FROM attempts AS lost WHERE lost.job_id = jobs.job_id AND lost.cause = 'node-lost') AS losses
FROM jobs JOIN declared USING (job_id)
"""
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
    """The supervisor that lived then; empty: none did."""
    left_at: float
    is_first: bool = False
    """Whether it adds the jobs of a run that begins."""
    is_withdrawn: bool = False


@dataclass(slots=True)
class JobFacts:
    """A job as the events say that it is."""

    state: str = "PENDING"
    wanted: str = "run"
    failures: int = 0
    ready_at: float = -math.inf
    """Monotonic time before which it is not launched again."""


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
    """The last event that was read."""
    rows: dict[str, Row] = field(default_factory=dict)
    """Jobs as they were committed last."""
    facts: dict[str, JobFacts] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    """The error of each answer, by the id of its request."""
    recorded_pids: set[int] = field(default_factory=set)
    """Of workers that the ledger knows."""
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
    is_awaiting: bool = True
    """Whether the jobs of this run have not been added yet."""
    is_refused: bool = False
    """Whether they were refused, which ends the run."""
    declared: set[str] = field(default_factory=set)
    """Those that were added last in this run."""
    stops: int = 0
    stop_by: float = math.inf
    is_released: bool = False
    _excused: set[AttemptId] = field(default_factory=set)
    """Attempts that their users want to end."""
    odd: set[AttemptId] = field(default_factory=set)
    """Attempts that may be killed, as they have sent what nobody can read."""
    _is_recovering: bool = True
    """Whether the next commit is the first one of a supervisor, or of an offline command."""
    _could_since: dict[str, float] = field(default_factory=dict)
    """When jobs came to be launchable that have not been launched."""

    # -- lives

    def life_begins(self, holder: str) -> None:
        self.holder = holder
        self.began = self.world.now
        self.is_awaiting = self._is_recovering = True
        self.is_refused = self.is_released = False
        self.declared = set()
        self.stops = 0
        self.stop_by = math.inf
        self._could_since.clear()
        for facts in self.facts.values():
            facts.ready_at = -math.inf

    def offline_begins(self) -> None:
        self._is_recovering = True

    def ledger_was_lost(self) -> None:
        """What was in the ledger is gone; job directories and the summary are there."""
        summary = self._summary() if self.paths.summary_json.exists() else {}
        for job_id, row in self.rows.items():
            directory = self.paths.job(job_id)
            is_known = row["state"] == "SUCCEEDED" and directory.model.exists()
            is_known |= row["state"] in ("PAUSED", "CANCELLED") and row["cause"] is None
            if not is_known or not directory.spec.exists():
                continue
            launched = spec_of({"spec": directory.spec.read_text()})
            is_same = launched["total_timesteps"] == spec_of(row)["total_timesteps"]
            if is_same and summary.get(job_id) == row["state"]:
                self.to_adopt[job_id] = (row["fingerprint"], row["state"])
        self._forget()

    def power_failed(self, connection: sqlite3.Connection | None) -> None:
        """Go back to the commits that are left. Nobody waits for an answer, and files may be gone or
        empty.

        :param connection: None: there is no ledger.
        """
        for left in self.requests.values():
            left.client = "dies"
            path = self.paths.requests / f"{left.id}.json"
            left.is_withdrawn |= not path.exists() or not path.stat().st_size
        done = {job_id: one for job_id, one in self.to_adopt.items() if one[1] == "SUCCEEDED"}
        self.to_adopt = done  # the summary that says the rest need not be on the disk
        self._forget()
        if connection is None:
            return
        self.cursor = connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]
        self.rows = {row["job_id"]: dict(row) for row in connection.execute(JOBS)}
        for job_id, row in self.rows.items():
            self.facts[job_id] = JobFacts(row["state"], row["wanted"], row["failures"])
        for id_, answer in connection.execute("SELECT id, answer FROM answers"):
            self.answers[id_] = json.loads(answer)["error"]

    def _forget(self) -> None:
        for left in self.requests.values():
            left.is_withdrawn |= not self._is_there(left.id)
        self.cursor = 0
        self.rows, self.facts, self.answers = {}, {}, {}

    def _summary(self) -> dict[str, str]:
        """Return the states of jobs according to summary.json."""
        text = self.paths.summary_json.read_bytes()
        return {row["job_id"]: row["state"] for row in json.loads(text)} if text else {}

    # -- after each commit

    def committed(self, connection: sqlite3.Connection) -> None:
        sql = "SELECT id, kind, job_id, facts FROM events WHERE id > ? ORDER BY id"
        events = [dict(row) for row in connection.execute(sql, (self.cursor,))]
        rows = {row["job_id"]: dict(row) for row in connection.execute(JOBS)}
        added: list[Request] = []
        if self._is_recovering:
            self._recover(connection, rows)
        for job_id, row in rows.items():
            self.facts.setdefault(job_id, JobFacts(wanted=row["wanted"]))
        for event in events:
            self.cursor = event["id"]
            event["facts"] = json.loads(event["facts"])
            if event["kind"] != "answer":
                self._take_event(event, rows)
            elif event["facts"]["request"] not in self.damaged:
                added += self._take_answer(connection, event["facts"]["request"])
        for job_id in self.rows.keys() - rows.keys():
            self._claim(bool(added), f"{job_id} is gone")
            del self.facts[job_id]
        for job_id, row in rows.items():
            self._take_launch(job_id, row)
            self._compare(job_id, row, is_entering=bool(added))
        self.rows = rows
        if added:
            self._look_at_entered(added[-1].args.get("jobs", ()))
        self._is_recovering = False

    def _recover(self, connection: sqlite3.Connection, rows: Mapping[str, Row]) -> None:
        """Jobs that ran when their supervisor died are no longer RUNNING."""
        for job_id, facts in self.facts.items():
            if facts.state != "RUNNING" or job_id not in rows:
                continue
            sql = "SELECT number, cause FROM attempts WHERE job_id = ? ORDER BY number DESC"
            number, cause = connection.execute(sql, (job_id,)).fetchone()
            self._claim(cause not in COUNTED, f"{job_id}: {cause}, and nobody has seen that")
            self._look_at_success(AttemptId(job_id, number), cause)
            facts.state = AFTER.get(cause, "FAILED")

    def _take_event(self, event: Row, rows: Mapping[str, Row]) -> None:
        """Apply an event to what is known of its job."""
        job_id, kind, told = event["job_id"], event["kind"], event["facts"]
        if kind == "launched":
            self.recorded_pids.add(told["pid"])
            return
        if kind in ("restarted", "adopted"):
            wanted = rows[job_id]["wanted"]
            state = told.get("state") or _wanted_state("PENDING", wanted)
            self.facts[job_id] = JobFacts(state, wanted)
            return
        state = told.get("state") or EVENTS.get(kind)
        facts = self.facts.get(job_id)
        if state is None or facts is None:
            return
        old = facts.state
        self._claim(state in MOVES[old], f"{job_id}: {old} has become {state}")
        if "number" in told:
            id_ = AttemptId(job_id, told["number"])
            self._look_at_end(id_, told["cause"], state, facts, rows[job_id])
        elif old in OVER:
            facts.failures = 0
        facts.state = state
        if state in ("SUCCEEDED", "FAILED"):
            facts.wanted = "run"  # what the user wanted came too late
        if state != "PENDING":
            facts.ready_at = -math.inf

    def _look_at_end(
        self, id_: AttemptId, cause: str | None, state: str, facts: JobFacts, row: Row
    ) -> None:
        """The cause of an end is what has happened to the worker, and the state follows from it."""
        self._look_at_cause(id_, cause)
        right = AFTER.get(cause, "FAILED")
        if cause in COUNTED and facts.failures < row["max_retries"]:
            facts.failures += 1
            ended_at = self.launched_at if cause == "launch-failed" else self.polled_at
            facts.ready_at = ended_at + min(2.0 ** (facts.failures - 1), 60.0)
            right = "PENDING"
        elif cause == "node-lost":
            facts.ready_at = self.polled_at + min(2.0 ** (row["losses"] - 1), 60.0)
        elif cause == "disk-full":
            self.world.has_erred = True
        if facts.wanted == "cancel" and right != "SUCCEEDED":
            right = "CANCELLED"
        is_promoted = cause == "rung" and state == "PENDING"
        self._claim(state == right or is_promoted, f"{id_.job_id} has to be {right}: {state}")

    def _look_at_cause(self, id_: AttemptId, cause: str | None) -> None:
        worker = self.machine.latest.get(id_)
        self._look_at_success(id_, cause)
        if worker is None:
            return
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

    def _look_at_success(self, id_: AttemptId, cause: str | None) -> None:
        worker = self.machine.latest.get(id_)
        is_right = cause is not None or worker is None or worker.is_finished
        self._claim(is_right, f"{id_.job_id} counts as trained, and is not")

    def _take_launch(self, job_id: str, row: Row) -> None:
        """Note that an attempt begins: that is recorded before it is submitted, without an event."""
        before = self.rows.get(job_id)
        facts = self.facts[job_id]
        if before is None or row["attempts"] <= before["attempts"] or row["state"] != "RUNNING":
            return
        # One of the same number may be that of a job that has started over.
        self.machine.latest.pop(AttemptId(job_id, row["attempts"] - 1), None)
        self._claim(facts.state == "PENDING", f"{job_id} is launched, and was {facts.state}")
        self._claim(facts.wanted == "run", f"{job_id} is launched, and its user wants it not")
        is_ready = self.world.monotonic >= facts.ready_at - 0.01
        self._claim(is_ready, f"{job_id} is launched before its back-off ends")
        missing = self._missing_parents(before)
        self._claim(not missing, f"{job_id} is launched before {missing}")
        self._claim(not self.is_awaiting, f"{job_id} is launched before it was compared")
        is_held_up = self.world.disturbed_at == self.world.now  # the stop came while it waited
        self._claim(not self.stops or is_held_up, f"{job_id} is launched although the run stops")
        facts.state = "RUNNING"

    def _missing_parents(self, row: Row) -> list[str]:
        parents = () if row["attempts"] else spec_of(row)["after"]
        return [
            parent
            for parent in parents
            if parent in self.rows and self.rows[parent]["state"] != "SUCCEEDED"
        ]

    def _compare(self, job_id: str, row: Row, *, is_entering: bool) -> None:
        """The job is in the ledger as its events say, or as it enters."""
        facts = self.facts[job_id]
        state = row["state"]
        if state != facts.state:
            is_right = is_entering and self._may_enter(job_id, row, facts)
            self._claim(is_right, f"{job_id} was {facts.state}, and is now {state}")
            facts.state = state
            facts.failures = row["failures"]
        if state in ("PENDING", "RUNNING"):
            is_right = row["failures"] == facts.failures
            self._claim(is_right, f"{job_id} has {row['failures']} failures, not {facts.failures}")
        if state in ("SUCCEEDED", "FAILED") and row["wanted"] == "run":
            facts.wanted = "run"
        is_noted = row["wanted"] == facts.wanted
        self._claim(is_noted, f"{job_id}: wanted {facts.wanted}, noted {row['wanted']}")
        is_held_up = self._is_recovering or self.world.has_erred or not self.declared
        is_settled = not is_held_up and row["cause"] != "rung"
        right = _wanted_state(state, facts.wanted)
        is_right = state == right or not is_settled
        self._claim(is_right, f"{job_id} is {state}; wanted: {facts.wanted}")

    def _may_enter(self, job_id: str, row: Row, facts: JobFacts) -> bool:
        """Return whether a job that was added may come to another state by that."""
        before = self.rows.get(job_id)
        job = self.machine.jobs[job_id]
        is_new = before is None or not before["attempts"]
        match "PENDING" if is_new else facts.state, row["state"]:
            case "SUCCEEDED", "PENDING":
                steps = spec_of(row)["total_timesteps"]
                is_longer = before is None or steps > spec_of(before)["total_timesteps"]
                return is_longer or job_id in self.results_removed
            case "CANCELLED", "PENDING":
                return job.is_declared
            case (("PENDING" | "PAUSED"), "CANCELLED") if not job.is_declared:
                return True
            case "PENDING", "FAILED":
                resources = Resources(**_parsed(row["resources"]))
                return job.is_invalid or resources.all_cores > self.world.scenario.cpus
            case "PENDING", state:
                return is_new and state == _wanted_state("PENDING", facts.wanted)
        return False

    def _look_at_entered(self, added: Sequence[Mapping[str, Any]]) -> None:
        """What was added is there as it is declared."""
        for values in added:
            job_id = values["job_id"]
            self._claim(job_id in self.rows, f"{job_id} was added, and is not there")
            row = self.rows[job_id]
            spec = spec_of(row)
            for name in ("total_timesteps", "env_kwargs"):
                is_same = spec.get(name) == values["spec"].get(name)
                is_same |= self.machine.jobs[job_id].is_invalid
                self._claim(is_same, f"{job_id} was added with another {name}")
            fingerprint, state = self.to_adopt.get(job_id, ("", ""))
            is_right = row["state"] == state or row["fingerprint"] != fingerprint
            is_right |= (
                row["state"] in ("FAILED", "SUCCEEDED") and state != "SUCCEEDED"
            )  # see exit.json
            self._claim(is_right, f"{job_id} was {state} in its directory: {row['state']}")
        self.to_adopt.clear()

    # -- requests

    def _take_answer(self, connection: sqlite3.Connection, id_: str) -> list[Request]:
        """Note an answer. Return the request if jobs were added."""
        sql = "SELECT answer FROM answers WHERE id = ?"
        found = connection.execute(sql, (id_,)).fetchone()
        self._claim(found is not None, f"the answer to {id_} is not recorded")
        self._claim(id_ not in self.answers, f"request {id_} is answered twice")
        error = self.answers[id_] = json.loads(found["answer"])["error"]
        request = self.requests[id_].request
        if request.verb == "add" and request.supervisor == self.holder and self.is_awaiting:
            self.is_awaiting = False
            self.is_refused = bool(error) and not self._is_held
        if error:
            return []
        match request.verb:
            case "add":
                names = {values["job_id"] for values in request.args.get("jobs", ())}
                self.declared = names or set(self.facts)
                return [request]
            case "stop":
                self._claim(self.holder == request.supervisor, "a stop ends another supervisor")
                for _ in range(2 if request.args.get("now") else 1):
                    self.asked_to_stop()
            case "release":
                self.is_released = True
            case verb if verb in WANTED and "pause_at" not in request.args:
                for job_id in request.jobs:
                    self._take_verb(job_id, verb)
        return []

    def _take_verb(self, job_id: str, verb: str) -> None:
        self._claim(job_id in self.facts, "a verb is applied to no job")
        self.facts[job_id].wanted = WANTED[verb]
        if verb in ("cancel", "pause"):
            self._excused |= {one.id for one in self.machine.alive if one.id.job_id == job_id}

    @property
    def _is_held(self) -> bool:
        """Whether the client of the run holds it open."""
        return bool(self.world.scenario.held_s) and not self.is_released

    def asked_to_stop(self) -> None:
        """A stop is accepted, by a request, a signal, or because the client is gone."""
        self.stops += 1
        grace_s = self.world.scenario.grace_s if self.stops == 1 else 0.0
        self.stop_by = min(self.stop_by, self.world.now + grace_s)

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

    # -- attempts

    def submitted(self, id_: AttemptId, job: Job, running: int) -> None:
        row = self.rows[id_.job_id]
        is_noted = row["state"] == "RUNNING" and row["attempts"] == id_.number + 1
        self._claim(is_noted, f"{id_.job_id} is launched before that is recorded")
        others = [worker for worker in self.machine.alive if worker.id.job_id == id_.job_id]
        self._claim(not others, f"{id_.job_id} is trained twice at once")
        directory = self.paths.job(id_.job_id)
        spec = spec_of(row)
        read = json.loads(directory.spec.read_bytes())
        for name in ("total_timesteps", "env_kwargs"):
            self._claim(spec.get(name) == read.get(name), f"{id_.job_id} reads another {name}")
        stale = directory.attempt(id_.number).exits()
        self._claim(not stale, f"{id_.job_id} begins with the exit record of another attempt")
        limit = self.machine.limit
        self._claim(running < limit, f"{running + 1} jobs run at once, and {limit} may")
        asked_mib = job.resources.min_free_disk_mib
        is_short = self.world.free_mib < asked_mib
        is_long = self.world.now - self.world.short_since > LATE_S + 0.5
        is_held_up = self.world.disturbed_at == self.world.now  # it was short while it waited
        is_right = not (is_short and is_long) or is_held_up
        self._claim(is_right, f"{id_.job_id} is launched without disk space")

    def killed(self, worker: Worker) -> None:
        """A worker is killed by its supervisor: is there a reason?"""
        now = self.world.now
        grace_s = self.world.scenario.grace_s
        is_silent = now - worker.heard_at > worker.job.resources.stall_timeout_s - 0.01
        has_reason = (
            (worker.asked_at is not None and now - worker.asked_at >= grace_s - 0.01)
            or grace_s == 0.0
            or self._stops_asked() + self.world.has_erred > 1
            or worker.grew_at is not None
            or (worker.is_placed and is_silent)
            or worker.id in self.odd
        )
        self._claim(has_reason, f"{worker.id.job_id} is killed without its grace time")

    # -- turns

    def polled(self, monotonic: float) -> None:
        self.launched_at = self.polled_at
        self.polled_at = monotonic

    def turn(self, executor: SimulatedExecutor) -> None:
        """The supervisor waits for events: what is overdue?"""
        for worker in self.machine.alive:
            if not worker.is_orphan:
                self._look_at_limits(worker)
        self._claim_in_time(self.stop_by, "a stop is not obeyed")
        adds = sum(left.request.verb == "add" for left in self.requests.values())
        for id_, left in self.requests.items():
            if id_ in self.answers or left.is_withdrawn or left.holder == "":
                continue
            what = f"{left.request.verb} {id_}"
            self._claim(self._is_there(id_), f"{what} is lost")
            self._claim(self._is_early(left.left_at, adds), f"{what} is not answered")
        for id_, came_at in self.damaged.items():
            is_right = self._is_early(came_at) or not self._is_there(id_)
            self._claim(is_right, f"{id_} is not set aside")
        self._look_for_idleness(executor)

    def _is_there(self, id_: str) -> bool:
        return (self.paths.requests / f"{id_}.json").exists()

    def _is_early(self, left_at: float, more_s: float = 0.0) -> bool:
        """Return whether the supervisor need not have acted yet on a file that was left then."""
        since = max(left_at, self.began, self._undisturbed())
        return self.world.now - since <= ANSWER_S + more_s

    def _undisturbed(self) -> float:
        """Return since when nothing has held the supervisor up."""
        world = self.world
        if world.is_full or world.is_failing:
            return world.now
        return max(world.disturbed_at, min(world.locked_until, world.now))

    def _claim_in_time(self, due: float, otherwise: str) -> None:
        """What is due then was done, unless the supervisor was held up."""
        excused_at = self._undisturbed() + self.world.scenario.grace_s
        by = max(due, excused_at) + LATE_S + self.late_s
        self._claim(self.world.now <= by, otherwise)

    def _look_at_limits(self, worker: Worker) -> None:
        job_id = worker.id.job_id
        resources = worker.job.resources
        grace_s = self.world.scenario.grace_s
        if worker.asked_at is not None:
            text = f"{job_id} trains on after it was asked to end"
            self._claim_in_time(worker.asked_at + grace_s, text)
            is_late = self.world.now - worker.began > resources.timeout_s - 0.01
            is_excused = worker.id in self._excused or worker.id in self.odd
            has_reason = self.stops or is_excused or is_late or self.world.has_erred
            self._claim(bool(has_reason), f"{job_id} is asked to end, and nobody wants that")
        if not worker.is_placed:
            return
        timeout_at = worker.began + resources.timeout_s
        self._claim_in_time(timeout_at + grace_s, f"{job_id} is over its timeout")
        self._claim_in_time(worker.heard_at + resources.stall_timeout_s, f"{job_id} hangs")
        if worker.grew_at is not None:
            samples = 1 + self.world.counts["lost"]
            text = f"{job_id} is over its memory limit"
            self._claim_in_time(worker.grew_at + samples * SAMPLE_EVERY_S, text)

    def _look_for_idleness(self, executor: SimulatedExecutor) -> None:
        """Something happens as long as something can."""
        now = self.world.now
        before, self._could_since = self._could_since, {}
        is_held_up = self.is_refused or self.stops or self.world.has_erred
        if is_held_up or not self.declared or executor.running >= self.machine.limit:
            return
        for job_id, row in self.rows.items():
            is_due = row["state"] == "PENDING" and not self._missing_parents(row)
            is_ready = self.world.monotonic >= self.facts[job_id].ready_at
            if not (is_due and is_ready):
                continue
            if executor.has_room(Resources(**_parsed(row["resources"]))):
                since = max(before.get(job_id, now), self._undisturbed(), self.world.short_until)
                self._could_since[job_id] = since
                is_idle = now - since > IDLE_S + self.late_s
                self._claim(not is_idle, f"{job_id} may be launched, and nothing happens")

    # -- ends

    def life_ended(self, exit_code: int, *, has_failed: bool) -> None:
        """A supervisor has ended by itself: ledger, summary and exit code say the same."""
        alive = [worker.id.job_id for worker in self.machine.alive if not worker.is_orphan]
        self._claim(not alive, f"the supervisor has ended, and these train: {alive}")
        if has_failed:
            return
        for id_ in self.answers:
            is_left = self._is_there(id_) and self.requests[id_].client in ("here", "elsewhere")
            self._claim(not is_left, f"{id_} was answered, and is still there")
        states = {job_id: row["state"] for job_id, row in self.rows.items()}
        self._claim("RUNNING" not in states.values(), f"the run has ended: {states}")
        summary = self._summary() if states else {}
        self._claim(summary == states, f"summary.json has {summary}, the ledger {states}")
        right = self._exit_code()
        is_free = self.is_refused or not self.declared
        self._claim(exit_code == right or is_free, f"exit code {exit_code}, not {right}: {states}")
        is_over = self.stops or self.is_refused
        is_held = self._is_held and not is_over
        self._claim(not is_held, "the run has ended, and its client holds it open")
        for job_id, row in self.rows.items():
            if row["state"] == "SUCCEEDED" and job_id not in self.results_removed:
                self._look_at_results(job_id, row)
            if self.declared and not is_over:
                self._look_at_rest(job_id, row)

    def _exit_code(self) -> int:
        names = {
            row["state"]
            for job_id, row in self.rows.items()
            if row["cause"] not in ("rung", "undeclared") and job_id in self.declared
        }
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
        self._claim(has_results, f"{job_id} has SUCCEEDED without its results")
        self._claim(row["env_steps"] == steps, f"{job_id}: env_steps {row['env_steps']}")

    def _look_at_rest(self, job_id: str, row: Row) -> None:
        """The job could not be trained on."""
        if row["state"] == "PENDING":
            missing = self._missing_parents(row)
            self._claim(bool(missing), f"{job_id} is not trained, and nothing keeps it")
        elif row["state"] == "PAUSED" and row["cause"] != "rung":
            is_meant = self.facts[job_id].wanted == "pause"
            self._claim(is_meant, f"{job_id} is paused, and nobody has asked for that")

    def _claim(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise Violation(otherwise)


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
