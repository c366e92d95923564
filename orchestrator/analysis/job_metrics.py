"""How the jobs of an experiment ran: what :mod:`orchestrator.analysis.contention` diagnoses from.

Read-only, and possible while the experiment runs. What is not known is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.timing_columns import Iteration
from orchestrator.experiment.directory import run_directory
from orchestrator.ledger import AttemptRow

COST_NEUTRAL_KEYS = (
    "job_id",
    "name",
    "seed",
    "search_path",
    "checkpoint_every",
    "eval_episodes",
    "evaluate",
    "video",
    "preview",
    "checkpoint_every_s",
    "keep_replay_buffer",
    "extended_from",
    "init",
    "init_sha256",
    "init_env_steps",
    "after",
    "pause_at",
    "measure_training",
    "collective_timeout_s",
)
"""Keys of a job's spec that do not change what an iteration costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpan:
    """The CPUs that a job had for some time; of a job with several ranks, those of rank 0."""

    begin: float
    """Seconds since the epoch, as ``end``."""
    end: float
    """Infinite while it lasts."""
    cpus: frozenset[int]
    """Empty when they are not known."""

    def common_cpus(self, other: CpuSpan) -> frozenset[int]:
        """CPUs that are in both spans at the same time."""
        is_at_once = self.begin < other.end and other.begin < self.end
        return self.cpus & other.cpus if is_at_once else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """One job; of a job with several ranks, its rank 0. Sums are over all iterations but the first,
    which warms up.
    """

    job_id: str
    spans: Sequence[CpuSpan]
    """One for each attempt, and one more for each move to other CPUs; the first one first."""
    competitors: tuple[str, ...] = ()
    """Other runs and programs that were seen to use these CPUs, for people."""
    fewest_cpus: int | None = None
    """The smallest number of CPUs of its slot that it was allowed, at the end of an iteration or of
    an attempt."""
    threads: int | None = None
    ranks: int = 1
    work: str = ""
    """Robot and hyperparameters; equal for jobs that differ in their seed alone. Empty when not
    known."""
    env_steps: float = 0.0
    wall_s: float
    """0 where no iteration is finished."""
    cpu_s: float | None
    run_delay_s: float | None
    throttled_s: float | None = None
    n_threads: int | None = None
    """The most at once."""

    @property
    def cpus(self) -> frozenset[int]:
        """All CPUs that it had at any time; empty when none are known."""
        return frozenset[int]().union(*(span.cpus for span in self.spans))

    @property
    def has_changed_cpus(self) -> bool:
        """Whether it was moved, or had other CPUs in another attempt."""
        return len({span.cpus for span in self.spans}) > 1

    @property
    def cores(self) -> int | None:
        """CPUs that it had at once; None when they are not known, or were not always as many."""
        numbers = {len(span.cpus) for span in self.spans}
        if len(numbers) != 1:
            return None
        return numbers.pop() or None

    def common_cpus(self, other: JobMetrics) -> frozenset[int]:
        """CPUs that both jobs had at the same time."""
        return frozenset[int]().union(
            *(one.common_cpus(two) for one in self.spans for two in other.spans)
        )

    def share(self, seconds: float | None) -> float | None:
        """``seconds`` as a part of ``wall_s``."""
        return seconds / self.wall_s if seconds is not None and self.wall_s > 0 else None

    @property
    def delay_share(self) -> float:
        """Time spent waiting for a CPU, as a part of ``wall_s``; 0 where it is not measured."""
        return self.share(self.run_delay_s) or 0.0

    @property
    def runnable(self) -> float | None:
        """Threads that computed or waited for a CPU, on average."""
        if self.cpu_s is None or self.run_delay_s is None:
            return None
        return self.share(self.cpu_s + self.run_delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentMetrics:
    """Metrics of the jobs, and limits of the machine when the supervisor was started."""

    jobs: Sequence[JobMetrics]
    """The jobs that have finished an iteration."""
    usable_cpus: int | None
    """CPUs that the supervisor was allowed."""
    online_cpus: int | None
    quota: float | None
    """Of the cgroup, in CPUs."""
    jobs_at_once: int | None
    """The most."""


def gather(run_dir: Path, among: Collection[str] | None = None) -> ExperimentMetrics:
    """The metrics of an experiment, finished or running.

    :param among: the jobs that are looked at; None: all.
    :raises LedgerError: when the ledger is damaged.
    """
    paths = RunPaths(run_dir)
    by_job: dict[str, list[_AttemptSlot]] = {}
    for attempt in _attempts(paths):
        if among is None or attempt.job_id in among:
            by_job.setdefault(attempt.job_id, []).append(attempt)
    jobs = [_metrics(paths.job(job_id), attempts) for job_id, attempts in by_job.items()]
    return of_jobs(jobs, paths)


def of_jobs(jobs: Sequence[JobMetrics], paths: RunPaths) -> ExperimentMetrics:
    """These metrics of jobs, with the limits of the machine as they were at the start of the last
    run.
    """
    session = run_reader.last_session(paths.provenance)
    usable = session.get("cpus")
    return ExperimentMetrics(
        jobs=[job for job in jobs if job.wall_s > 0],
        usable_cpus=len(usable) if isinstance(usable, list) else None,
        online_cpus=_count(session.get("online_cpus")),
        quota=run_reader.finite(session.get("cpu_quota")),
        jobs_at_once=_count(session.get("jobs_at_once")),
    )


NEEDED = {"job_id", "cpus", "started_at", "ended_at"}
"""What is read of a row of ``summary.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttemptSlot:
    """The CPUs of an attempt, and when it had them; a moved attempt has several of these, the first
    one first.
    """

    job_id: str
    number: int
    robot_hash: str | None
    cpus: Sequence[int] | None
    started_at: float | None
    ended_at: float | None
    competitors: Sequence[str] = ()


def _attempts(paths: RunPaths) -> list[_AttemptSlot]:
    """All attempts, by the CPUs that they had; without a ledger the last one of each job."""
    if not paths.ledger.exists():
        return _last_attempts(run_reader.read_json(paths.summary_json))
    slots: list[_AttemptSlot] = []
    with run_directory.reading_ledger(paths) as ledger:
        hashes = {row["job_id"]: row["robot_hash"] for row in ledger.summary()}
        for row in ledger.attempts():
            slots += _slots_of(row, hashes.get(row["job_id"]))
    return slots


def _slots_of(row: AttemptRow, robot_hash: str | None) -> list[_AttemptSlot]:
    """An attempt on its CPUs; each of them on its own where it was moved."""
    spans = row["cpu_spans"]
    ends = [*(span["since"] for span in spans[1:]), row["ended_at"]]
    return [
        _AttemptSlot(
            job_id=row["job_id"],
            number=row["number"],
            robot_hash=robot_hash,
            cpus=span["cpus"],
            started_at=span["since"],
            ended_at=end,
            competitors=row["competitors"],
        )
        for span, end in zip(spans, ends, strict=True)
    ]


def _last_attempts(summary: Any) -> list[_AttemptSlot]:
    """The last attempt of each job, from its row of the summary.

    :param summary: the content of ``summary.json``, or what is there in its place.
    """
    slots: list[_AttemptSlot] = []
    for row in summary if isinstance(summary, list) else ():
        is_readable = isinstance(row, dict) and row.keys() >= NEEDED
        attempts = _count(row.get("attempts")) if is_readable else None
        if attempts is not None:
            slots.append(
                _AttemptSlot(
                    job_id=row["job_id"],
                    number=attempts - 1,
                    robot_hash=row.get("robot_hash"),
                    cpus=row["cpus"],
                    started_at=row["started_at"],
                    ended_at=row["ended_at"],
                )
            )
    return slots


def cpus_of_rank_0(cpus: Sequence[int] | None, ranks: int) -> frozenset[int]:
    """The CPUs of a job's first rank; empty where they are not known.

    :param cpus: of the slot of all ranks; None: not known.
    """
    return frozenset(cpus[: len(cpus) // ranks] if cpus else ())


def _metrics(job: JobPaths, attempts: Sequence[_AttemptSlot]) -> JobMetrics:
    """Of one job, from its files. :param attempts: its own, the first one first; at least one."""
    spec = run_reader.read_json_object(job.spec) or {}
    iterations = run_reader.iterations(job.timings_csv)
    counted = iterations[1:] or iterations
    warmed_up_at = iterations[0].env_steps if len(iterations) > 1 else 0.0
    ranks = _count(spec.get("ranks")) or 1
    work = {key: value for key, value in spec.items() if key not in COST_NEUTRAL_KEYS}
    spans = [
        CpuSpan(
            begin=attempt.started_at,
            end=attempt.ended_at or math.inf,
            cpus=cpus_of_rank_0(attempt.cpus, ranks),
        )
        for attempt in attempts
        if attempt.started_at is not None
    ]
    competitors = dict.fromkeys(name for attempt in attempts for name in attempt.competitors)
    allowed_cpus = [*(row.n_cpus for row in counted), *_allowed_cpus(job, attempts, ranks)]
    return JobMetrics(
        job_id=job.root.name,
        spans=spans,
        ranks=ranks,
        competitors=tuple(competitors),
        fewest_cpus=_extreme(min, allowed_cpus),
        threads=_count(spec.get("threads")),
        work=json.dumps([attempts[-1].robot_hash, work], sort_keys=True) if work else "",
        env_steps=iterations[-1].env_steps - warmed_up_at if iterations else 0.0,
        wall_s=_total(counted, "wall_s") or 0.0,
        cpu_s=_total(counted, "cpu_s"),
        run_delay_s=_total(counted, "run_delay_s"),
        throttled_s=_total(counted, "throttled_s"),
        n_threads=_extreme(max, [row.n_threads for row in counted]),
    )


def _allowed_cpus(job: JobPaths, attempts: Sequence[_AttemptSlot], ranks: int) -> list[int]:
    """For each attempt whose end is known: how many CPUs of its slot it was allowed at its end."""
    at_end = {attempt.number: cpus_of_rank_0(attempt.cpus, ranks) for attempt in attempts}
    numbers = []
    for number, cpus in at_end.items():
        record = read_exit_record(job.attempt(number).exit) if cpus else None
        if record is not None and record.cpus is not None:
            numbers.append(len(cpus & {*record.cpus}))
    return numbers


def _count(value: Any) -> int | None:
    """A whole number above 0; None for anything else that a file may hold in its place."""
    return value if type(value) is int and value > 0 else None


def _total(rows: Sequence[Iteration], column: str) -> float | None:
    """The sum of a column; None without rows, or where one value was not measured."""
    values = [getattr(row, column) for row in rows]
    return None if not values or None in values else math.fsum(values)


def _extreme(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> int | None:
    """The smallest or largest of the values that are known. :param choose: ``min`` or ``max``."""
    known = [value for value in values if value is not None]
    return int(choose(known)) if known else None
