"""Weak scaling: the same work in one, two, many processes at once, started in every way, in random
order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.analysis.benchmark_plan import BenchmarkPlan, calibration
from orchestrator.analysis.samples import MeasurementRecord
from orchestrator.core.errors import UsageError
from orchestrator.core.text import count, duration
from orchestrator.features.bench import drift, forecast, plan
from orchestrator.features.bench.measurement import (
    Measurement,
    MeasurementLog,
    describe,
    with_disturbance,
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

    Time limits and drift are relative to this calibration, which also fills the page cache. A
    continued benchmark keeps its calibration.

    :raises UsageError: one process alone cannot be measured.
    """
    if document["calibration"] is not None:
        return document
    setup.tell(f"Calibration: one {work.job.job_id} alone.")
    reference_s = drift.kernel_s(setup.cpus)
    begun = time.monotonic()
    record = measure(
        CALIBRATION,
        work,
        setup,
        seconds=document["seconds"],
        limit_s=CALIBRATION_LIMIT_S,
        reference_s=reference_s,
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
        "reference_s": min(reference_s, record["drift"]["before_s"], record["drift"]["after_s"]),
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
    retakes: int,
) -> Taken:
    """Take the missing measurements of the plan at ``path``, or of ``new``.

    Disturbed measurements are repeated at the end; failed ones wait for the next call.

    :param without_pinned: levels at which the baseline "pinned" is left out.
    :param started_as: planned measurement and the job's work → the processes and the work that are
        started for it.
    :param extra_s: added to every time limit.
    :raises UsageError: the plan at ``path`` measures something else, or nothing can be measured.
    """
    document = plan.begin(path, new)
    plan.write(path, document)
    document = _calibrate(path, document, work, setup)
    reference_s = document["reference_s"]
    assert reference_s is not None, "the calibration has measured it"
    planned = planned_measurements(document, without_pinned)
    missing = log.missing(planned, retakes)
    for line in _opening_lines(document, len(planned), len(missing)):
        setup.tell(line)
    queue = _Queue(missing, log, retakes)
    done = 0
    begun = time.monotonic()
    while queue.waiting:
        measurement = queue.waiting.popleft()
        started, its_work = started_as(measurement, work)
        record = measure(
            started,
            its_work,
            setup,
            seconds=document["seconds"],
            limit_s=_limit_s(document, started) + extra_s,
            reference_s=reference_s,
        )
        record = queue.enter(measurement, {**record, **measurement.key()})
        done += 1
        left = len(queue.waiting)
        each_s = (time.monotonic() - begun) / done
        remaining = f", about {duration(each_s * left)} remaining" if left else ""
        setup.tell(f"[{done}/{done + left}] {measurement}: {describe(record)}{remaining}")
    if queue.given_up:
        which = f"{count(len(queue.given_up), 'disturbed measurement')} not taken again"
        advice = "The same command takes them again; a machine without other load needs no retakes."
        setup.tell(f"{which}, as too many were disturbed. {advice}")
    failed = set(log.missing(planned, retakes)) - queue.given_up
    return Taken(alone=calibration(document)["throughput"], failed=len(failed))


def _opening_lines(document: BenchmarkPlan, planned: int, missing: int) -> list[str]:
    """For the user: how many measurements there are, and how long they take."""
    lines = []
    if missing < planned:
        lines.append(f"{planned - missing} of {planned} measurements are already finished.")
    if missing:
        all_s = calibration(document)["cell_s"] * missing
        lines.append(f"{missing} measurements to take, about {duration(all_s)} if none is slow.")
    return lines


def _limit_s(document: BenchmarkPlan, started: Measurement) -> float:
    """Time limit of a measurement of the plan, as its processes are started."""
    cores = started.level * document["work"]["cores"]
    sharing = max(1.0, cores / document["machine"]["capacity"])
    return TIME_LIMIT_FACTOR * calibration(document)["cell_s"] * sharing


class _Queue:
    """Measurements that wait to be taken, those that are to be taken again behind the others."""

    def __init__(self, missing: Sequence[Measurement], log: MeasurementLog, retakes: int) -> None:
        """:param retakes: most of one measurement."""
        self.waiting = deque(missing)
        self.given_up = set[Measurement]()
        """Disturbed ones that are not taken again, as too many were."""
        self._log = log
        self._retakes = retakes
        self._retakes_left = forecast.most_retakes(len(missing))

    def enter(self, measurement: Measurement, record: MeasurementRecord) -> MeasurementRecord:
        """Write what was measured into the log, and take it again where it was disturbed. Returns
        the record, which says so.
        """
        is_disturbed = record["status"] != "failed" and bool(record["disturbance"])
        is_worth_it = is_disturbed and self._log.disturbed_counts()[measurement] < self._retakes
        again = is_worth_it and self._retakes_left > 0
        entered = with_disturbance(record, again=again)
        self._log.append(entered)
        if again:
            self.waiting.append(measurement)
            self._retakes_left -= 1
        elif is_worth_it:
            self.given_up.add(measurement)
        return entered


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
