"""Examinations by a few processes side by side: who is asked what, and what becomes of a request
whose process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.processes.readable import readable
from orchestrator.experiment.examination import examining_process
from orchestrator.experiment.examination.examination_requests import memory_mib
from orchestrator.experiment.examination.examining_process import Child

TIME_LIMIT_S = 60.0
ROBOTS_A_CHILD = 3
"""Robots that one child examines in the time it takes to start another."""
AGAIN = "; so did a second examination, in a process of its own"
"""Added to what is said of a robot whose examination was killed twice."""
CHECK_EVERY_S = 0.1

Watch: TypeAlias = Callable[[int, int], None]
"""Called repeatedly with the numbers of robots examined so far and to be examined; an exception
that it raises ends the examination."""


def with_check(watch: Watch, check: Callable[[], object]) -> Watch:
    """``watch`` that calls ``check`` first, which may raise, too."""

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
    """The answers in the order of the requests, from a few children side by side.

    A request that ends a child which has answered others is repeated in a new one: those may be the
    cause. So is one whose child is killed from outside, then while no other child is busy: memory
    may have run out.

    :param processes: the most of them.
    :param time_limit_s: for each request.
    """
    worthwhile = min(processes, math.ceil(len(requests) / ROBOTS_A_CHILD))
    memory = memory_mib(processes=worthwhile)
    limited = [dataclasses.replace(request, memory_mib=memory) for request in requests]
    with _Children(warm, kept) as children:
        examinations = _Examinations(
            limited, children, processes=worthwhile, time_limit_s=time_limit_s
        )
        while not examinations.are_over:
            examinations.begin_waiting()
            examinations.take_answers()
            watch(len(examinations.answers), len(requests))
        children.keep_idle()
    return [examinations.answers[index] for index in range(len(requests))]


class _Children:
    """Children that may be asked: those that exist already, and new ones. On exit all are closed,
    except those that are kept.
    """

    def __init__(self, warm: Child | None, kept: list[Child] | None) -> None:
        """:param kept: children of earlier calls; empty until :meth:`keep_idle`."""
        earlier = list(kept or ())
        if kept is not None:
            kept.clear()
        if warm is not None:
            earlier.insert(0, warm)
        self._kept = kept
        self._opened = list(earlier)
        self._idle = list(earlier)

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        left_open = self._kept or ()
        with contextlib.ExitStack() as closing:
            for child in self._opened:
                if child not in left_open:
                    closing.callback(child.__exit__)

    def take_idle(self, request: ExaminationRequest) -> Child | None:
        """One that can be asked ``request`` now; None: there is none."""
        child = next((child for child in self._idle if child.suits(request)), None)
        if child is not None:
            self._idle.remove(child)
        return child

    def start(self) -> Child:
        """A new one."""
        child = examining_process.Child()
        self._opened.append(child)
        return child

    def give_back(self, child: Child) -> None:
        """It is idle again."""
        self._idle.append(child)

    def keep_idle(self) -> None:
        """Leave the idle ones open, for later calls, where they are to be kept."""
        if self._kept is not None:
            self._kept[:] = self._idle


class _Examinations:
    """Requests that a few children answer side by side."""

    def __init__(
        self,
        requests: Sequence[ExaminationRequest],
        children: _Children,
        *,
        processes: int,
        time_limit_s: float,
    ) -> None:
        self.answers: dict[int, ExaminationAnswer] = {}
        """By the place of their requests."""
        self._requests = requests
        self._children = children
        self._processes = processes
        self._time_limit_s = time_limit_s
        self._waiting = deque(range(len(requests)))
        self._busy: dict[Child, int] = {}
        self._repeated = set[int]()
        self._killed = set[int]()
        """Requests whose children were killed from outside: they are repeated alone."""

    @property
    def are_over(self) -> bool:
        return len(self.answers) == len(self._requests)

    def begin_waiting(self) -> None:
        """Ask as many requests as may be examined at once."""
        while self._waiting and len(self._busy) < self._most_busy:
            index = self._waiting.popleft()
            request = self._requests[index]
            child = None if index in self._repeated else self._children.take_idle(request)
            child = child or self._children.start()
            child.ask(request, self._time_limit_s)
            self._busy[child] = index

    @property
    def _most_busy(self) -> int:
        """Children that may be busy once the next request is asked."""
        is_one_alone = not self._killed.isdisjoint((self._waiting[0], *self._busy.values()))
        return 1 if is_one_alone else self._processes

    def take_answers(self) -> None:
        """Wait a little for answers, and take those that there are."""
        can_be_read = readable(self._busy, CHECK_EVERY_S)
        for child in list(self._busy):
            answer = child.answer(can_be_read=child in can_be_read)
            if answer is None:
                continue
            index = self._busy.pop(child)
            if isinstance(answer, ExaminationAnswer):
                self.answers[index] = answer
                if not answer.process_exits:
                    self._children.give_back(child)
            elif child.may_be_blameless and index not in self._repeated:
                self._repeat(index, was_killed=child.was_killed)
            else:
                is_second = index in self._killed and child.was_killed
                problem = f"{answer}{AGAIN}" if is_second else answer
                self._give_up(index, problem, is_late=child.hung)

    def _repeat(self, index: int, *, was_killed: bool) -> None:
        self._repeated.add(index)
        self._waiting.appendleft(index)
        if was_killed:
            self._killed.add(index)

    def _give_up(self, index: int, problem: str, *, is_late: bool) -> None:
        """Answer a request that no child answers."""
        robot = self._requests[index].robot
        text = problem if robot is None else f"{robot}: {problem}"
        self.answers[index] = ExaminationAnswer(problem=text, is_late=is_late)
