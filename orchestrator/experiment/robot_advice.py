"""``check --advise``: lets examining processes measure advice on physics, one robot after the other
on one CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.physics_advice import PhysicsAdvice
from orchestrator.experiment import preflight
from orchestrator.machine import topology
from orchestrator.machine.neighbours import Neighbours
from orchestrator.machine.slots import SlotPool

WALL_PER_CPU_S = 10.0
"""Seconds that a CPU second may take, where other processes use the CPU, too."""


def with_advice(
    examined: Sequence[tuple[ExaminationRequest, ExaminationAnswer]],
    *,
    advise_s: float,
    time_limit_s: float,
    watch: preflight.Watch,
) -> list[ExaminationAnswer]:
    """The answers, with advice for each that has no problem.

    :param time_limit_s: for all else than measuring.
    """
    machine = topology.detect()
    pool = SlotPool(machine, 1, Neighbours.of_this_machine(experiment="check --advise"))
    slot = pool.acquire(1)
    assert slot is not None, "an empty pool has room for one core"
    answers = [answer for _, answer in examined]
    advisable = [
        number
        for number, answer in enumerate(answers)
        if answer.problem is None and answer.fragment is None
    ]
    try:
        for done, number in enumerate(advisable):
            request, answer = examined[number]
            asked = dataclasses.replace(
                request,
                task=answer.task,
                init={},
                asymmetric=False,
                simulate_s=preflight.LEAST_SIMULATE_S,
                advise_s=advise_s,
                advise_cpu=slot.cpus[0],
            )
            limit_s = time_limit_s + WALL_PER_CPU_S * advise_s

            def report(_: int, __: int, done: int = done) -> None:
                watch(done, len(advisable))

            advice = _without_task(request, answer)
            if advice is None:
                (measured,) = preflight.ask([asked], at_once=1, time_limit_s=limit_s, watch=report)
                advice = measured.advice or PhysicsAdvice(problem=measured.problem)
            answers[number] = dataclasses.replace(answer, advice=advice)
    finally:
        pool.close()
    return answers


def _without_task(request: ExaminationRequest, answer: ExaminationAnswer) -> PhysicsAdvice | None:
    """Why nothing can be measured; None where it can."""
    if request.env is not None or request.entry_point is not None:
        text = (
            "the job has an environment of its own (env or entry_point); only tasks can be measured"
        )
        return PhysicsAdvice(problem=text)
    if answer.task is None:
        return PhysicsAdvice(
            problem=f"no task fits the robot ({answer.task_reason}); check a job file that names one"
        )
    return None
