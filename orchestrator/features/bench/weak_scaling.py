"""Weak scaling: the same work in one, two, many processes at once, started in every way, in random
order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.features.bench import plan
from orchestrator.features.bench.benchmark_plan import BenchmarkPlan, calibration
from orchestrator.features.bench.measurement import (
    Measurement,
    MeasurementLog,
    describe,
)
from orchestrator.features.bench.runner import Setup, measure
from orchestrator.features.bench.workload import Work

TIME_LIMIT_FACTOR = 4.0
"""Time limit of a measurement, in durations of the calibration; longer where processes share
cores."""
CALIBRATION_LIMIT_S = 1800.0
CALIBRATION = Measurement(baseline="pinned", level=1, repeat=-1)


def _calibrate(path: Path, document: BenchmarkPlan, work: Work, setup: Setup) -> BenchmarkPlan:
    """Measure one process alone, and write the result into the plan at ``path``; returns the plan.

    Time limits are relative to this calibration, which also fills the page cache. A continued
    benchmark keeps its calibration.

    :raises UsageError: one process alone cannot be measured.
    """
    if document["calibration"] is not None:
        return document
    setup.tell(f"Calibration: one {work.job.job_id} alone.")
    begun = time.monotonic()
    record = measure(
        CALIBRATION, work, setup, seconds=document["seconds"], limit_s=CALIBRATION_LIMIT_S
    )
    if record["status"] == "failed":
        raise UsageError(f"{work.job.job_id} cannot be measured: {record['message']}")
    if record["status"] == "cut":
        why = f"its iterations take too long ({record['message']})"
        advice = "Choose another job with --job, or reduce n_steps with --set ppo.n_steps=N"
        raise UsageError(f"{work.job.job_id} cannot be measured: {why}. {advice}")
    throughput = record["throughput"]
    assert throughput is not None, "it has neither failed nor been cut off"
    document = {
        **document,
        "calibration": {"cell_s": time.monotonic() - begun, "throughput": throughput},
    }
    plan.write(path, document)
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a call has brought."""

    alone: float
    """env_steps/s of one process alone."""
    failed: int
    """Number of measurements that have failed."""


def run(
    new: BenchmarkPlan,
    path: Path,
    log: MeasurementLog,
    work: Work,
    setup: Setup,
    *,
    without_pinned: Collection[int] = (),
    started_as: Callable[
        [Measurement, Work], tuple[Measurement, Work]
    ] = lambda measurement, work: (measurement, work),
    extra_s: float = 0.0,
) -> Taken:
    """Take the missing measurements of the plan at ``path``, or of ``new``.

    Failed measurements wait for the next call.

    :param without_pinned: levels at which the baseline "pinned" is left out.
    :param started_as: planned measurement and the job's work → the processes and the work that are
        started for it.
    :param extra_s: added to every time limit.
    :raises UsageError: the plan at ``path`` measures something else, or nothing can be measured.
    """
    document = plan.begin(path, new)
    plan.write(path, document)
    document = _calibrate(path, document, work, setup)
    planned = planned_measurements(document, without_pinned)
    missing = log.missing(planned)
    if len(missing) < len(planned):
        finished = len(planned) - len(missing)
        setup.tell(f"{finished} of {len(planned)} measurements are already finished.")
    for number, measurement in enumerate(missing, start=1):
        started, its_work = started_as(measurement, work)
        record = measure(
            started,
            its_work,
            setup,
            seconds=document["seconds"],
            limit_s=_limit_s(document, started) + extra_s,
        )
        log.append({**record, **measurement.key()})
        setup.tell(f"[{number}/{len(missing)}] {measurement}: {describe(record)}")
    return Taken(alone=calibration(document)["throughput"], failed=len(log.missing(planned)))


def _limit_s(document: BenchmarkPlan, started: Measurement) -> float:
    """Time limit of a measurement of the plan, as its processes are started."""
    cores = started.level * document["work"]["cores"]
    sharing = max(1.0, cores / document["machine"]["capacity"])
    return TIME_LIMIT_FACTOR * calibration(document)["cell_s"] * sharing


def planned_measurements(
    document: BenchmarkPlan, without_pinned: Collection[int]
) -> list[Measurement]:
    """Those of a plan, in order. :param without_pinned: levels at which the baseline "pinned" is
    left out.
    """
    every = [
        Measurement(baseline=name, level=level, repeat=repeat)
        for name, level, repeat in document["order"]
    ]
    return [one for one in every if one.baseline != "pinned" or one.level not in without_pinned]
