"""Comparison of run directories (other machine, version or settings): ratios with intervals.

Two benchmarks are compared by baseline and level, two files of ``benchmarks.machine`` by case, two
experiments by job, over its seeds; of more than two, each is compared with the first. Read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from orchestrator.analysis.job_values import EVALUATION, TRAINING
from orchestrator.analysis.statistics import Estimate, estimate, ratio
from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed
from orchestrator.features.compare import sides
from orchestrator.features.compare.declared_settings import (
    Difference,
    differing_settings,
    value_text,
)
from orchestrator.features.compare.paid_otherwise import other_tasks_remarks
from orchestrator.features.compare.protocols import remark_on_protocols
from orchestrator.features.compare.sides import Kind, Side

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one case in both run directories."""

    what: str
    """The case: ``default × 2``, or a job's name."""
    figure: str
    """``throughput`` or ``efficiency``; of jobs ``env_steps/s``, ``return`` (in training) or
    ``evaluation``, or the figure that was named."""
    a: Estimate
    b: Estimate
    ratio: Estimate | None
    """B divided by A; None where a value is not positive."""
    bound: str = ""
    """The sides that are upper bounds, from measurements that were cut off: ``a``, ``b`` or
    ``ab``."""
    less_is_better: bool | None = False
    """None: that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    kind: Kind
    a: Path
    b: Path
    pairs: Sequence[Pair]
    differences: Sequence[Difference]
    """Other than settings."""
    settings: Sequence[Difference] = ()
    """What jobs that both have are trained with; the jobs are named unless all of them differ
    alike."""
    only_a: Sequence[str]
    only_b: Sequence[str]
    other_trials: Sequence[str] = ()
    """Jobs of searches that are not compared, as equal names mean other points."""
    remarks: Sequence[str] = ()
    """What has to be known to trust the comparison."""

    def facts(self) -> dict[str, Any]:
        """The content of ``--json`` for two run directories."""
        return {
            **asdict(self),
            "a": str(self.a),
            "b": str(self.b),
        }


def all_remarks(comparisons: Iterable[Comparison]) -> list[str]:
    """Those of all comparisons, each once."""
    return list(dict.fromkeys(remark for one in comparisons for remark in one.remarks))


Line: TypeAlias = Sequence[Pair | None]
"""One figure of one case: its pair in each comparison with the first run directory, None where one
does not have it."""
LETTERS = "ABCDEFGH"
"""Names of the run directories in tables; as many can be compared."""


def compare_with_first(runs: Sequence[Path], by: str | None = None) -> list[Comparison]:
    """Each run directory after the first, compared with the first in the cases that both have.

    :param by: the figure that jobs are compared by: a measure, a column or an expression of them;
        None: speed and returns.
    :raises UsageError: for directories without results, of different kinds, or with nothing in
        common; or there is no such figure.
    """
    first, *others = (sides.read(run, by) for run in runs)
    returns = [TRAINING, EVALUATION] if by is None else [by]
    return [_comparison_of(first, other, returns) for other in others]


def facts(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The content of ``--json``; of more than two run directories, that of every comparison with
    the first.
    """
    if len(comparisons) == 1:
        return comparisons[0].facts()
    return {"kind": comparisons[0].kind, "comparisons": [one.facts() for one in comparisons]}


def lines(comparisons: Sequence[Comparison]) -> list[Line]:
    """All figures, in the order of the first run directory's."""
    by_place = [{(pair.what, pair.figure): pair for pair in one.pairs} for one in comparisons]
    places = dict.fromkeys(place for pairs in by_place for place in pairs)
    return [[pairs.get(place) for pairs in by_place] for place in places]


def any_pair(line: Line) -> Pair:
    """The figure's first pair: what it says about the figure itself and the first run directory,
    all of them say.
    """
    return next(pair for pair in line if pair is not None)


def _comparison_of(a: Side, b: Side, figures: Sequence[str]) -> Comparison:
    """:param figures: by which jobs are compared."""
    if a.kind != b.kind:
        article = {"benchmark": "a benchmark", "experiment": "an experiment"}
        kinds = f"{a.path} is {article[a.kind]} and {b.path} is {article[b.kind]}"
        raise UsageError(f"{kinds}: give two benchmarks or two experiments")
    common = [what for what in a.cases if what in b.cases]
    other_trials = _other_trials(common, a, b)
    unlike = [what for what in common if what in other_trials]
    compared = [what for what in common if what not in other_trials]
    pairs = [pair for what in compared for pair in _pairs(what, a, b)]
    if not pairs and unlike:
        raise UsageError(f"{_other_trials_text(unlike, a, b)}; `best` shows what each has found")
    if not pairs:
        cases = f"the first has {names_of(list(a.cases))}, the second has {names_of(list(b.cases))}"
        names = "Baselines and levels" if a.kind == "benchmark" else "Names of finished jobs"
        advice = (
            "; otherwise write a `report` of each, or read their summary.csv"
            if a.kind == "experiment"
            else ""
        )
        raise UsageError(
            f"{a.path} and {b.path} have nothing in common: {cases}. {names} must agree{advice}"
        )
    settings = differing_settings(_only(compared, a.settings), _only(compared, b.settings))
    return Comparison(
        kind=a.kind,
        a=a.path,
        b=b.path,
        pairs=pairs,
        differences=[
            Difference(
                name.replace("_", " "),
                value_text(a.facts.get(name)),
                value_text(b.facts.get(name)),
            )
            for name in dict.fromkeys([*a.facts, *b.facts])
            if a.facts.get(name) != b.facts.get(name)
        ],
        settings=settings,
        only_a=[what for what in a.cases if what not in b.cases],
        only_b=[what for what in b.cases if what not in a.cases],
        other_trials=unlike,
        remarks=[
            *([f"Left out: {_other_trials_text(unlike, a, b)}."] if unlike else []),
            *other_tasks_remarks(figures, settings),
            *remark_on_protocols(
                [str(a.path), str(b.path)],
                [_only(compared, a.protocols), _only(compared, b.protocols)],
            ),
            *_remarks_on_choice(compared, (a, b)),
        ],
    )


def _only(cases: Iterable[str], by_case: Mapping[str, T]) -> dict[str, T]:
    return {case: by_case[case] for case in cases if case in by_case}


# -- jobs of searches


def _other_trials(common: Iterable[str], a: Side, b: Side) -> set[str]:
    """Those cases of ``common`` of which only the number of the trial agrees: their points differ.

    A job without a point is no other one: the unchanged job, and a trial that `best --to` has
    copied into a job file.
    """
    if not (a.chooser.makes_jobs or b.chooser.makes_jobs):
        return set()
    with_points = [what for what in common if a.points.get(what) and b.points.get(what)]
    return {what for what in with_points if a.points[what] != b.points[what]}


def _other_trials_text(cases: Sequence[str], a: Side, b: Side) -> str:
    noun = a.chooser.noun if a.chooser.makes_jobs else b.chooser.noun
    each = "is another point" if len(cases) == 1 else "are other points"
    return f"{names_of(cases)} {each} in the {noun} of {a.path} than in {b.path}"


def _remarks_on_choice(compared: Sequence[str], both: Sequence[Side]) -> list[str]:
    sentences = [
        side.chooser.bias_sentence(side.path)
        for side in both
        if any(case in side.chosen for case in compared)
    ]
    return list(dict.fromkeys(sentences))


# -- figures


def _pairs(what: str, a: Side, b: Side) -> Iterator[Pair]:
    bound = f"{'a' if what in a.bounds else ''}{'b' if what in b.bounds else ''}"
    for figure, a_values in a.cases[what].items():
        b_values = b.cases[what].get(figure)
        if not a_values or not b_values:
            continue
        yield Pair(
            what=what,
            figure=figure,
            a=_estimate(a_values, is_bound="a" in bound),
            b=_estimate(b_values, is_bound="b" in bound),
            ratio=_quotient(a_values, b_values, bound),
            bound=bound,
            less_is_better=None if figure in a.without_aim else figure in a.less_is_better,
        )


def _quotient(a: Sequence[float], b: Sequence[float], bound: str) -> Estimate | None:
    """B divided by A; None where a value is not positive, or both are upper bounds."""
    if min(*a, *b) <= 0 or bound == "ab":
        return None
    quotient = ratio(b, a)
    if bound == "a":  # A is at most so much, so the ratio is at least so much
        return replace(quotient, high=None)
    return replace(quotient, low=None) if bound == "b" else quotient


def _estimate(values: Sequence[float], *, is_bound: bool) -> Estimate:
    """As in the reports: an upper bound has no ``low``."""
    result = estimate(values)
    return replace(result, low=None) if is_bound else result


def names_of(cases: Sequence[str]) -> str:
    """The first five names, for a sentence."""
    return listed(cases, 5) if cases else "nothing that is finished"
