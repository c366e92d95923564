"""Weak scaling: the same work in one, two, many processes at once, started in every way, in random
order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

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


def _calibrated(path: Path, document: dict[str, Any], work: Work, setup: Setup) -> dict[str, Any]:
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
    document = {
        **document,
        "reference_s": min(reference_s, record["drift"]["before_s"], record["drift"]["after_s"]),
        "calibration": {"cell_s": time.monotonic() - begun, "throughput": record["throughput"]},
    }
    plan.write(path, document)
    return document


def run(
    new: dict[str, Any],
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
) -> tuple[dict[str, Any], int]:
    """Take the missing measurements of the plan at ``path``, or of ``new``. Returns the plan, and
    how many have failed.

    Disturbed measurements are repeated at the end; failed ones wait for the next call.

    :param without_pinned: levels at which the baseline "pinned" is left out.
    :param started_as: planned measurement and the job's work → the processes and the work that are
        started for it.
    :param extra_s: added to every time limit.
    :raises UsageError: the plan at ``path`` measures something else, or nothing can be measured.
    """
    document = plan.begin(path, new)
    plan.write(path, document)
    document = _calibrated(path, document, work, setup)
    planned = planned_measurements(document, without_pinned)
    cell_s = document["calibration"]["cell_s"]
    tell = setup.tell
    queue = deque(log.missing(planned, retakes))
    if len(queue) < len(planned):
        tell(f"{len(planned) - len(queue)} of {len(planned)} measurements are already finished.")
    if queue:
        tell(
            f"{len(queue)} measurements to take, about {duration(cell_s * len(queue))} if none is slow."
        )
    done = 0
    begun = time.monotonic()
    retakes_left = forecast.most_retakes(len(queue))
    given_up = set[Measurement]()
    while queue:
        measurement = queue.popleft()
        started, its_work = started_as(measurement, work)
        sharing = max(
            1.0, started.level * document["work"]["cores"] / document["machine"]["capacity"]
        )
        record = measure(
            started,
            its_work,
            setup,
            seconds=document["seconds"],
            limit_s=TIME_LIMIT_FACTOR * cell_s * sharing + extra_s,
            reference_s=document["reference_s"],
        )
        record = {**record, **measurement.key()}
        is_disturbed = record["status"] != "failed" and bool(record["disturbance"])
        is_worth_it = is_disturbed and log.disturbed()[measurement] < retakes
        again = is_worth_it and retakes_left > 0
        record = with_disturbance(record, again=again)
        log.append(record)
        if again:
            queue.append(measurement)
            retakes_left -= 1
        elif is_worth_it:
            given_up.add(measurement)
        done += 1
        each_s = (time.monotonic() - begun) / done
        remaining = f", about {duration(each_s * len(queue))} remaining" if queue else ""
        tell(f"[{done}/{done + len(queue)}] {measurement}: {describe(record)}{remaining}")
    if given_up:
        text = f"{count(len(given_up), 'disturbed measurement')} not taken again, as too many were disturbed"
        tell(
            f"{text}. The same command takes them again; a machine without other load needs no retakes."
        )
    return document, len(set(log.missing(planned, retakes)) - given_up)


def planned_measurements(
    document: Mapping[str, Any], without_pinned: Collection[int]
) -> list[Measurement]:
    """Those of a plan, in order. :param without_pinned: levels at which the baseline "pinned" is
    left out.
    """
    every = [
        Measurement(baseline=name, level=level, repeat=repeat)
        for name, level, repeat in document["order"]
    ]
    return [one for one in every if one.baseline != "pinned" or one.level not in without_pinned]
