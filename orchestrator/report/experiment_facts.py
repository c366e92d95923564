"""The facts of an experiment as ``report.json`` holds them; None: not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from orchestrator.analysis.contention import ContentionFinding
from orchestrator.analysis.run_reader import EvaluationFile, LearningCurve
from orchestrator.analysis.statistics import EstimateFacts
from orchestrator.ledger import AttemptRow, SummaryRow

Timings: TypeAlias = Mapping[str, float | None]
"""``iterations`` (their number), ``env_steps``, and columns of ``timings.csv`` → sum or maximum
over its rows."""


class ReportedAttempt(AttemptRow):
    """An attempt; ``cpu_s`` is that of all ranks, and ``why_exec`` is known of every worker of this
    machine.
    """

    at_work: bool
    until: float
    """Its end, or now while it is running, or the last row of its timings."""


def attempt_outcome(attempt: ReportedAttempt) -> str:
    """``succeeded``, ``running``, ``failed``, or ``interrupted``: by a stop, at a rung, or with its
    supervisor.
    """
    if attempt["ended_at"] is None:
        return "running" if attempt["at_work"] else "interrupted"
    if attempt["cause"] is None:
        return "succeeded"
    causes = ("interrupted", "paused", "rung", "cancelled", "supervisor-died")
    return "interrupted" if attempt["cause"] in causes else "failed"


class FailedAttempt(TypedDict):
    attempt: int
    cause: str
    message: str


class ReportedJob(SummaryRow):
    """A row of ``summary.json``, of which ``report.json`` repeats some columns. RUNNING: its
    supervisor runs.
    """

    robot: str
    group: str
    """Its ``job_id`` without the seed."""
    point: Mapping[str, Any]
    """Keys that a matrix varies → their values."""
    core_hours: float
    mode: str | None
    """None for a single rank."""
    allreduce: float | None
    """Rank 0's share of time in collectives, waiting included."""
    failures: Sequence[FailedAttempt]
    timings: Timings
    curve: LearningCurve
    marks: Mapping[str, Sequence[float]]
    """What is marked on its learning curve → the env_steps."""
    evaluation: EvaluationFile | None
    preview: bool
    """Whether it has a still."""


class EpisodeEstimates(TypedDict):
    """Estimates over seeds, of the episodes of the evaluation."""

    mean: EstimateFacts | None
    std: float | None
    """Over the episodes of a single seed."""
    measures: Mapping[str, EstimateFacts | None]


class ReportedPoint(TypedDict):
    """A point of the grid of the final evaluation."""

    at: Mapping[str, float | str]
    mean: EstimateFacts | None
    """Mean return over the episodes, estimated over the seeds."""


class ReportedRobot(TypedDict):
    """Jobs that differ in their seed alone. Estimates are over the seeds."""

    robot: str
    group: str
    name: str
    task: str
    point: Mapping[str, Any]
    jobs: Sequence[str]
    seeds: Sequence[int]
    unlike_seeds: Sequence[int]
    """Those of them that were trained with other settings, or another robot, than the first: the job
    file was changed in between."""
    states: Sequence[str]
    env_steps: Sequence[int]
    """Of each job."""
    lineage_env_steps: Sequence[int | None]
    """Of each job, as there."""
    parents: Sequence[str | None]
    """Of each job: the job of the run directory that had trained the policy that it started from."""
    first: EstimateFacts | None
    last: EstimateFacts | None
    evaluation: EpisodeEstimates | None
    grid: Sequence[ReportedPoint]
    """Empty where it was not evaluated on one."""
    env_steps_per_s: EstimateFacts | None
    core_hours: float
    attempts: int
    phases: Mapping[str, float]
    """Phase, or ``rest_s`` → seconds."""
    run_delay_s: float | None
    timed_s: float
    timed_env_steps: float


class RanksRow(TypedDict):
    ranks: int
    mode: str | None
    jobs: Sequence[str]
    env_steps_per_s: EstimateFacts | None
    speedup: EstimateFacts | None
    """Relative to the fewest ranks."""
    efficiency: EstimateFacts | None
    """The speed-up divided by the ratio of the numbers of ranks."""
    allreduce: EstimateFacts | None


class RanksOfRobot(TypedDict):
    robot: str
    task: str
    base: int
    """The fewest ranks."""
    rows: Sequence[RanksRow]
    """One for each number of ranks and mode."""


class Totals(TypedDict):
    jobs: int
    states: Mapping[str, int]
    retries: int
    """Launches after an attempt that failed."""
    busy_s: float
    core_hours: float
    env_steps: int
    env_steps_per_s: float | None


class ExperimentFacts(TypedDict):
    """``jobs``, ``robots`` and ``findings`` are those of the shown jobs."""

    kind: str
    name: str
    made_at: str
    running: bool
    totals: Totals
    varied: Sequence[str]
    """Of the varied keys that tell robots apart."""
    robots: Sequence[ReportedRobot]
    ranks: Sequence[RanksOfRobot]
    jobs: Sequence[ReportedJob]
    attempts: Sequence[ReportedAttempt]
    findings: Sequence[ContentionFinding]
    machine: Mapping[str, Any]
