"""Examinations by a few processes side by side."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.processes.readable import readable
from orchestrator.examination import examining_process
from orchestrator.examination.examination_requests import memory_mib
from orchestrator.examination.examining_process import Child

TIME_LIMIT_S = 60.0
ROBOTS_A_CHILD = 3
"""Robots that one child examines in the time it takes to start another."""
CHECK_EVERY_S = 0.1

Watch: TypeAlias = Callable[[int, int], None]
"""Called repeatedly with the numbers of robots examined so far and to be examined; an exception
that it raises ends the examination."""


def with_check(watch: Watch, check: Callable[[], object]) -> Watch:
    """Return ``watch`` that calls ``check`` first, which may raise, too."""

    def check_and_watch(done: int, robots: int) -> None:
        check()
        watch(done, robots)

    return check_and_watch


def ask(
    requests: Sequence[ExaminationRequest],
    *,
    processes: int,
    time_limit_s: float = TIME_LIMIT_S,
    warm: Child | None = None,
    kept: list[Child] | None = None,
    watch: Watch = lambda *_: None,
) -> list[ExaminationAnswer]:
    """Return the answers in the order of the requests, from a few children side by side.

    A request whose child ends without an answer is asked once more, of a new child and while no
    other one is busy: another robot or a lack of memory may have ended the first one.

    :param processes: the most of them.
    :param time_limit_s: for each request.
    :param warm: a child that was started earlier; it is closed, unless it is kept.
    :param kept: children of earlier calls; the idle ones are left in it, to be closed by the caller.
    """
    most_busy = min(processes, math.ceil(len(requests) / ROBOTS_A_CHILD))
    memory = memory_mib(processes=most_busy)
    idle: list[Child] = [] if kept is None else kept
    if warm is not None:
        idle.append(warm)
    busy: dict[Child, int] = {}
    waiting = deque(range(len(requests)))
    again: set[int] = set()
    answers: dict[int, ExaminationAnswer] = {}
    try:
        while len(answers) < len(requests):
            while waiting and len(busy) < most_busy:
                if busy and not again.isdisjoint((waiting[0], *busy.values())):
                    break
                index = waiting.popleft()
                request = dataclasses.replace(requests[index], memory_mib=memory)
                child = _child_for(request, [] if index in again else idle)
                busy[child] = index
                child.ask(request, time_limit_s)
            can_be_read = readable(busy, CHECK_EVERY_S)
            for child in list(busy):
                answer = child.answer(can_be_read=child in can_be_read)
                if answer is None:
                    continue
                index = busy.pop(child)
                if answer.process_exits:
                    child.close()
                else:
                    idle.append(child)
                if answer.cause == "process" and not answer.is_late and index not in again:
                    again.add(index)
                    waiting.appendleft(index)
                else:
                    answers[index] = _named(answer, requests[index])
            watch(len(answers), len(requests))
    finally:
        for child in [*busy, *(idle if kept is None else ())]:
            child.close()
    return [answers[index] for index in range(len(requests))]


def _child_for(request: ExaminationRequest, idle: list[Child]) -> Child:
    """Take an idle child that can be asked ``request``, or start one."""
    for child in idle:
        if child.suits(request):
            idle.remove(child)
            return child
    return examining_process.Child()


def _named(answer: ExaminationAnswer, request: ExaminationRequest) -> ExaminationAnswer:
    """Return an answer whose problem names the robot: who writes for a child does not know it."""
    if answer.cause != "process" or request.robot is None:
        return answer
    return dataclasses.replace(answer, problem=f"{request.robot}: {answer.problem}")
