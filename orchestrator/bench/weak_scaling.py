"""Weak scaling: the same work in one, two, many processes at once, started in every way, in random order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from orchestrator.bench import drift, plan
from orchestrator.bench.measurement import Measurement, MeasurementLog, describe, with_disturbance
from orchestrator.bench.runner import Setup, measure
from orchestrator.bench.workload import Work
from orchestrator.core.errors import UsageError
from orchestrator.core.text import duration

PATIENCE = 4.0
"""Time limit of a measurement, in durations of the calibration; longer where processes share cores."""
CALIBRATION_LIMIT_S = 1800.0
CALIBRATION = Measurement(baseline="pinned", level=1, repeat=-1)

Tell = Callable[[str], None]
StartedAs = Callable[[Measurement], tuple[Measurement, Work]]
"""Planned measurement → the processes and the work that are started for it."""


def calibrate(path: Path, document: dict[str, Any], work: Work, setup: Setup, tell: Tell) -> dict[str, Any]:
    """Measure one process alone, and write the result into the plan at ``path``; returns the plan.

    Time limits and drift are relative to this calibration, which also fills the page cache. A continued benchmark keeps
    its calibration.

    :raises UsageError: one process alone cannot be measured.
    """
    if document["calibration"] is not None:
        return document
    tell(f"Calibration: one {work.job.job_id} alone.")
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
        raise UsageError(
            f"{work.job.job_id} cannot be measured: its iterations take too long ({record['message']})."
            " Choose another job with --job, or reduce n_steps with --set ppo.n_steps=N"
        )
    document = {
        **document,
        "reference_s": min(reference_s, record["drift"]["before_s"], record["drift"]["after_s"]),
        "calibration": {"cell_s": time.monotonic() - begun, "throughput": record["throughput"]},
    }
    plan.write(path, document)
    return document


def limit_s(document: dict[str, Any], level: int) -> float:
    """The time after which a measurement is cut off."""
    sharing = max(1.0, level * document["work"]["cores"] / document["machine"]["capacity"])
    return float(PATIENCE * document["calibration"]["cell_s"] * sharing)


def run(
    document: dict[str, Any],
    log: MeasurementLog,
    planned: Sequence[Measurement],
    started_as: StartedAs,
    setup: Setup,
    *,
    extra_s: float = 0.0,
    retakes: int,
    tell: Tell,
) -> None:
    """Take the missing measurements. Disturbed ones are repeated at the end; failed ones wait for the next call.

    :param extra_s: added to every time limit.
    """
    queue = deque(log.missing(planned, retakes))
    if len(queue) < len(planned):
        tell(f"{len(planned) - len(queue)} of {len(planned)} measurements are already finished.")
    if queue:
        each_s = document["calibration"]["cell_s"]
        tell(f"{len(queue)} measurements to take, about {duration(each_s * len(queue))} if none is slow.")
    done, begun = 0, time.monotonic()
    while queue:
        measurement = queue.popleft()
        started, work = started_as(measurement)
        record = measure(
            started,
            work,
            setup,
            seconds=document["seconds"],
            limit_s=limit_s(document, started.level) + extra_s,
            reference_s=document["reference_s"],
        )
        record |= measurement.key()
        again = bool(record["disturbance"]) and log.times_disturbed(measurement) < retakes
        record = with_disturbance(record, again=again)
        log.append(record)
        if again:
            queue.append(measurement)
        done += 1
        each_s = (time.monotonic() - begun) / done
        remaining = f", about {duration(each_s * len(queue))} remaining" if queue else ""
        tell(f"[{done}/{done + len(queue)}] {measurement}: {describe(record)}{remaining}")
