"""What the supervisor shows of its work, to a person or a program: events in words, and a view of everything."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from orchestrator.core.job import AttemptOutcome, Cancelled, Cause, Failed, Job, Pending, State
from orchestrator.core.messages import ExitRecord, Progress
from orchestrator.executors.base import Handle
from orchestrator.machine.slots import Slot
from orchestrator.supervisor import retry_policy

Facts: TypeAlias = Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Live:
    """A running attempt, as the supervisor knows it. Times are monotonic seconds."""

    job: Job
    handle: Handle
    slot: Slot
    started: float
    last_progress: float
    progress: Progress | None = None
    rss_mib: float = 0.0
    max_rss_mib: float = 0.0
    asked: AttemptOutcome | None = None
    """Why it was asked to leave, once it was."""
    kill_at: float | None = None
    is_placed: bool = True
    """Whether it has come to run; before that its time does not count."""
    node: str | None = None
    """The machine that it runs on, where there are several."""
    look_at: float = math.inf
    """When it is next held against its limits."""

    def watched(self) -> retry_policy.Watched:
        return retry_policy.Watched(
            resources=self.job.resources,
            started=self.started if self.is_placed else math.inf,
            last_progress=self.last_progress if self.is_placed else math.inf,
            rss_mib=self.rss_mib,
        )

    @property
    def where(self) -> str:
        """``"0,1"``, the CPUs; with the node's name before them where there are several machines."""
        cpus = cpus_by_rank(self.slot.cpus, self.job.resources.ranks)
        return cpus if self.node is None else f"{self.node} {cpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The whole experiment at one moment, for whoever shows it."""

    elapsed_s: float
    counts: Counter[str]
    live: Collection[Live]
    """In order of launch; true for this moment only."""
    ended: Sequence[tuple[Live, State]]
    """The last few jobs that are over, the latest last."""
    next_up: Sequence[Job]
    """The first few that wait."""
    steps_to_go: int
    env_steps_per_s: float
    cores_busy: float


class Reporter(Protocol):
    """Tells a person or a program what happens."""

    def event(self, kind: str, message: str, **facts: Any) -> None: ...

    def tick(self, view: Callable[[], View]) -> None:
        """Called every turn of the loop; asks for the view only when it will show it."""
        ...


class DetachableReporter:
    """A reporter whose listener may go away: a closed terminal or pipe ends the telling, not the experiment."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter: Reporter | None = reporter

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if self._reporter is not None:
            try:
                self._reporter.event(kind, message, **facts)
            except OSError:
                self._reporter = None

    def tick(self, view: Callable[[], View]) -> None:
        if self._reporter is not None:
            try:
                self._reporter.tick(view)
            except OSError:
                self._reporter = None


def cpus_by_rank(cpus: Sequence[int], ranks: int) -> str:
    """``"0,1"``; of several ranks ``"0,1 | 2,3"``."""
    each = len(cpus) // ranks
    runs = [cpus[rank * each : (rank + 1) * each] for rank in range(ranks)]
    return " | ".join(",".join(map(str, run)) for run in runs)


def told_launch(live: Live, pid: int | None) -> tuple[str, str, Facts]:
    """Kind, message and facts of the event.

    :param pid: of rank 0, on its own machine.
    """
    job_id, number, cpus, ranks = live.job.job_id, live.handle.number, live.slot.cpus, live.job.resources.ranks
    many = f"as {ranks} ranks " if ranks > 1 else ""
    on = "" if live.node is None else f"on {live.node}, "
    where = f"{on or 'on '}CPU {cpus_by_rank(cpus, ranks)}"
    text = f"{job_id} launched {many}{where}" + (f", attempt {number}" if number else "")
    facts = {"job_id": job_id, "number": number, "pid": pid, "node": live.node, "cpus": cpus, "ranks": ranks}
    return "launched", text, facts


def told_end(
    live: Live, ending: AttemptOutcome, new: State, record: ExitRecord | None, now: float
) -> tuple[str, str, Facts]:
    """Kind, message and facts of the event."""
    facts: dict[str, Any] = {
        "job_id": live.job.job_id,
        "number": live.handle.number,
        "state": new.name,
        "cause": ending.cause,
        "wall_s": round(now - live.started, 3),
    }
    if record is not None:
        facts.update(env_steps=record.env_steps, ep_rew_mean=record.ep_rew_mean, eval_mean=record.eval_mean)
    name = live.job.job_id
    match new:
        case Failed(message=message):
            facts["reason"] = message
            return "failed", f"{name} failed: {message}", facts
        case Pending(not_before=None):
            return "paused", f"{name} left to be resumed: {ending.message}", facts
        case Pending(failures=failures, not_before=when):
            wait = max(0.0, (when or 0.0) - now)
            again = f"retry {failures} of {live.job.max_retries}"
            if ending.cause is Cause.NODE_LOST:
                again = "it goes on"
            text = f"{name} {ending.message}; {again} in {wait:.0f} s"
            return "retrying", text, facts
        case Cancelled():
            return "cancelled", f"{name} cancelled", facts
        case _:
            return "succeeded", f"{name} succeeded{_returns(record)}", facts


def _returns(record: ExitRecord | None) -> str:
    if record is None or record.ep_rew_mean is None or record.ep_rew_mean_first is None:
        return ""
    evaluated = f", evaluated {record.eval_mean:.1f}" if record.eval_mean is not None else ""
    return f": return {record.ep_rew_mean_first:.1f} → {record.ep_rew_mean:.1f}{evaluated}"


class SilentReporter:
    """For callers of the Python API who did not ask to see anything."""

    def event(self, kind: str, message: str, **facts: Any) -> None:
        """Nobody is told."""

    def tick(self, view: Callable[[], View]) -> None:
        """Nothing is drawn."""
