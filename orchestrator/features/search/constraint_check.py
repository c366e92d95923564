"""Measures the bodies of points without training them, and says how many random points satisfy the
constraints of a search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.errors import Problem, SpecError
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.examination import (
    examination_requests,
    examining_process,
    side_by_side,
)
from orchestrator.features.search.declaration.constraints import ConstraintCheck, check_measures
from orchestrator.features.search.declaration.declared_search import (
    declaration_of,
    jobs_at,
    points_to_begin_with,
)
from orchestrator.features.search.declaration.random_points import random_points
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import SourceVerdict
from orchestrator.machine import topology

MODEL_MEASURES = "orchestrator.features.search.worker.model_measures"
POINTS = 1000
"""Random points that are measured, at most, to see whether the constraints can be satisfied."""
AT_ONCE = 10
"""Points for each child that are measured between two looks at the clock."""
ENOUGH = 100
"""Points that are measured at least, so that it does not depend on the cores whether few satisfy the
constraints."""
FEW = 0.05
"""Up to this share of random points that satisfy them, a run says so when it begins."""
COUNTING_S = 60.0
"""Longest time for counting the points that satisfy them; a run counts :data:`ENOUGH` whatever that
takes."""


@dataclass(slots=True, kw_only=True)
class PointMeasurer:
    """Checks points against the constraints; its processes go on until :meth:`close`."""

    experiment: Experiment
    processes: int = 1
    """That measure side by side."""
    _is_needed: bool = field(init=False)
    """Whether any body might be refused."""
    _children: list[examining_process.Child] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        search = declaration_of(self.experiment).search
        self._is_needed = search is not None and (
            bool(search.constraints) or _are_bodies_made(self.experiment)
        )

    def close(self) -> None:
        for child in self._children:
            child.close()

    def check(
        self, points: Sequence[Mapping[str, Any]], turn: Callable[[], object] = lambda: None
    ) -> list[ConstraintCheck]:
        """What the constraints say of each point. One that makes no job, or no robot that can be
        compiled, satisfies none; where a function makes the robots, that is asked without constraints,
        too.

        :param turn: called repeatedly; an exception that it raises is passed on.
        """
        if not self._is_needed:
            return [ConstraintCheck(excess=()) for _ in points]
        checks: dict[int, ConstraintCheck] = {}
        requests: dict[int, ExaminationRequest] = {}
        for number, point in enumerate(points):
            try:
                (job, *_) = jobs_at(self.experiment, "measured", point)
            except SpecError as error:
                checks[number] = _unknown("; ".join(map(str, error.problems)))
            else:
                ((request, _),) = examination_requests.requests_of([job])[0].values()
                requests[number] = dataclasses.replace(request, measured_by=MODEL_MEASURES, init={})

        def watch(*_: int) -> None:
            turn()

        answers = side_by_side.ask(
            list(requests.values()), processes=self.processes, kept=self._children, watch=watch
        )
        for number, answer in zip(requests, answers, strict=True):
            checks[number] = self._of_answer(answer)
        return [checks[number] for number in range(len(points))]

    @property
    def _search(self) -> SearchSpec:
        search = declaration_of(self.experiment).search
        assert search is not None
        return search

    def _of_answer(self, answer: ExaminationAnswer) -> ConstraintCheck:
        if answer.problem is not None:
            return _unknown(answer.problem)
        return check_measures(self._search.constraints, answer.measured)


def _are_bodies_made(experiment: Experiment) -> bool:
    """Whether a function makes the robot of each point, which it may refuse."""
    return experiment.jobs_to_examine[0].spec.robot_maker is not None


def _unknown(why: str) -> ConstraintCheck:
    """Of a body whose measures are not known."""
    return ConstraintCheck(excess=None, why=why or "the body has no measures")


@dataclass(frozen=True, slots=True, kw_only=True)
class SatisfiedPoints:
    """How many random points satisfy the constraints."""

    satisfied: int
    measured: int
    example: str
    """What is wrong with the first one that does not; empty where all do."""
    is_example_measured: bool
    """Whether that is beyond a bound; otherwise the constraint has no value there."""

    @property
    def sentence(self) -> str:
        verb = "satisfies" if self.satisfied == 1 else "satisfy"
        share = f"{self.satisfied:,} of {self.measured:,} random points {verb} the constraints"
        return f"{share} (one that does not: {self.example})" if self.example else share


def examine(experiment: Experiment, turn: Callable[[], object]) -> SourceVerdict:
    """Whether the constraints let a search begin: a random point satisfies them, and each of
    ``initial`` does. No more are measured than :data:`ENOUGH` once one does, or after
    :data:`COUNTING_S`; that few do is a warning.
    """
    with _measurer(experiment) as measurer:
        if measurer is None:
            return SourceVerdict()
        points = points_to_begin_with(experiment)
        for number, check in enumerate(measurer.check(points, turn)):
            if not check.is_satisfied:
                what = f"the point does not satisfy search.constraints: {check.why}"
                return _refused(f"search.initial[{number}]", what)
        counted = _counted(measurer, experiment, turn, first=ENOUGH, least=ENOUGH)
    if not counted.satisfied:
        what = f"none of {counted.measured:,} random points satisfies them, so there is no body to train"
        advice = "Widen a bound" if counted.is_example_measured else "Correct the constraint"
        what = f"{what}; the first: {counted.example}. {advice}, or the space"
        return _refused("search.constraints", what)
    if counted.satisfied > FEW * counted.measured:
        return SourceVerdict()
    advice = "so many bodies are measured for each that is trained; a wider bound would help"
    return SourceVerdict(warnings=[f"search.constraints: {counted.sentence}, {advice}"])


def _refused(where: str, message: str) -> SourceVerdict:
    return SourceVerdict(problem=Problem(where=where, message=message))


def count_satisfied(experiment: Experiment) -> SatisfiedPoints | None:
    """How many of :data:`POINTS` random points satisfy the constraints, or of so many as can be
    measured in :data:`COUNTING_S`; None without constraints.
    """
    with _measurer(experiment) as measurer:
        if measurer is None:
            return None
        return _counted(measurer, experiment, lambda: None, first=POINTS, least=1)


@contextlib.contextmanager
def _measurer(experiment: Experiment) -> Iterator[PointMeasurer | None]:
    """None without constraints."""
    search = declaration_of(experiment).search
    if search is None or not search.constraints:
        yield None
        return
    processes = topology.detect(with_gpus=False).capacity
    with contextlib.closing(PointMeasurer(experiment=experiment, processes=processes)) as measurer:
        yield measurer


def _counted(
    measurer: PointMeasurer,
    experiment: Experiment,
    turn: Callable[[], object],
    *,
    first: int,
    least: int,
) -> SatisfiedPoints:
    """:param first: how many are measured at least, if there is time; more only where none of them
        satisfies the constraints.
    :param least: how many are measured whatever time that takes.
    """
    search = declaration_of(experiment).search
    assert search is not None
    deadline = time.monotonic() + COUNTING_S
    points = random_points(search.space, search.seed, POINTS)
    checks: list[ConstraintCheck] = []
    satisfied = 0
    first = min(first, POINTS)
    while len(checks) < first or (len(checks) < POINTS and not satisfied):
        if len(checks) >= least and time.monotonic() > deadline:
            break
        together = measurer.processes * AT_ONCE
        if len(checks) < first:
            together = min(together, first - len(checks))
        checks += measurer.check(points[len(checks) : len(checks) + together], turn)
        satisfied = sum(check.is_satisfied for check in checks)
    others = [check for check in checks if not check.is_satisfied]
    return SatisfiedPoints(
        satisfied=satisfied,
        measured=len(checks),
        example=others[0].why if others else "",
        is_example_measured=bool(others) and others[0].excess is not None,
    )
