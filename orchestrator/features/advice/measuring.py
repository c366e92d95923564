"""Lets examining processes measure advice on physics, one robot after the other on one CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from orchestrator.core.decoding import from_values
from orchestrator.core.messages import ExaminationRequest, MeasurementRequest
from orchestrator.experiment.examination import examination_requests, side_by_side
from orchestrator.experiment.examination.robot_check import RobotCheck
from orchestrator.features.advice.physics_advice import PhysicsAdvice
from orchestrator.machine import topology
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.slots import SlotPool

ADVISOR = "orchestrator.features.advice.worker.physics_advisor"
WALL_PER_CPU_S = 10.0
"""Seconds that a CPU second may take, where other processes use the CPU, too."""


def advice(
    rows: Sequence[RobotCheck], *, cpu_s: float, time_limit_s: float, watch: side_by_side.Watch
) -> list[PhysicsAdvice | None]:
    """For each row; None for a robot that cannot be trained.

    :param cpu_s: CPU seconds of measuring for each robot.
    :param time_limit_s: for all else than measuring.
    :param watch: called with the number of robots that are done, and of those that can be trained.
    """
    machine = topology.detect()
    pool = SlotPool(machine, 1, Neighbours.of_this_machine(experiment="advise"))
    slot = pool.acquire(1)
    assert slot is not None, "an empty pool has room for one core"
    limit_s = time_limit_s + WALL_PER_CPU_S * cpu_s
    settings = {"cpu_s": cpu_s, "cpu": slot.cpus[0], "limit_s": limit_s}
    advisable = sum(row.request is not None for row in rows)
    given: list[PhysicsAdvice | None] = []
    done = 0

    def report(_: int, __: int) -> None:
        watch(done, advisable)

    try:
        for row in rows:
            if row.request is None:
                given.append(None)
                continue
            if why := _not_measurable(row, row.request):
                given.append(PhysicsAdvice(problem=why))
            else:
                request = _with_measurement(row, row.request, settings)
                given.append(_measure(request, limit_s, report))
            done += 1
    finally:
        pool.close()
    return given


def facts(
    rows: Sequence[RobotCheck], given: Sequence[PhysicsAdvice | None]
) -> list[dict[str, Any]]:
    """Those of ``check``, each with its ``advice``, None without."""
    return [
        {**row.facts(), "advice": None if one is None else _advice_facts(one)}
        for row, one in zip(rows, given, strict=True)
    ]


def _advice_facts(given: PhysicsAdvice) -> dict[str, Any]:
    changes = [
        {**dataclasses.asdict(change), "is_offered": change.is_offered} for change in given.changes
    ]
    return {**dataclasses.asdict(given), "changes": changes}


def _not_measurable(row: RobotCheck, request: ExaminationRequest) -> str:
    """Why nothing can be measured; empty where it can."""
    if request.is_environment:
        return (
            "the job has an environment of its own (env or entry_point); only tasks can be measured"
        )
    if row.task is None:
        return f"no task fits the robot ({row.task_reason}); check a job file that names one"
    return ""


def _with_measurement(
    row: RobotCheck, request: ExaminationRequest, settings: dict[str, Any]
) -> ExaminationRequest:
    return dataclasses.replace(
        request,
        task=row.task,
        init={},
        asymmetric=False,
        simulate_s=examination_requests.LEAST_SIMULATE_S,
        measurement=MeasurementRequest(module=ADVISOR, settings=settings),
    )


def _measure(
    request: ExaminationRequest, limit_s: float, watch: side_by_side.Watch
) -> PhysicsAdvice:
    (answer,) = side_by_side.ask([request], processes=1, time_limit_s=limit_s, watch=watch)
    if answer.problem is not None:
        remedy = "; give a larger --time-limit or a smaller --time" if answer.is_late else ""
        return PhysicsAdvice(problem=f"{answer.problem}{remedy}", has_failed=True)
    try:
        return from_values(PhysicsAdvice, answer.measured)
    except ValueError as error:  # such as a size that is no number
        return PhysicsAdvice(problem=f"what was measured cannot be used: {error}", has_failed=True)
