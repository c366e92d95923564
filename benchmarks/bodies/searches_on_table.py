"""Which search finds the best body of a table: a part of ``python -m benchmarks.search``.

All searches have the same budget of env_steps. What counts is regret: the value of the best body of
the table less the true value of the one that is chosen. Intervals are over searches on one table,
and say nothing of other robots.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import table_of_bodies
from benchmarks.bodies import choosing, landscape, maker, racing_rules
from benchmarks.bodies.compared_searches import (
    OPTUNAS_OWN,
    Chosen,
    Comparison,
    OptunaSearch,
    Ratio,
    Task,
    p_of_pairs,
    ratio_of_means,
    regrets,
    regrets_of_tried,
    share,
    true_values,
)
from benchmarks.bodies.landscape import Landscape
from benchmarks.bodies.maker import Part
from benchmarks.bodies.simulated_search import Strategy
from benchmarks.harness import Line
from orchestrator.features.search.auto_sampler import SearchTraits, sampler_for
from orchestrator.features.search.declaration.spec import RaceSpec, SchedulerSpec
from orchestrator.features.search.search_source import SearchSource

TRAININGS = 60
"""The most that a search on a table has."""
BODIES_A_TRAINING = 8
"""A landscape has at least so many bodies for each of them: early rungs try more than three for one,
which is then two fifths of all."""
EARLY = SchedulerSpec(kind="asha", min_env_steps=6_144, factor=3)
LATE = SchedulerSpec(kind="asha", min_env_steps=24_576, factor=3)
"""A single rung, in the middle of the training."""
RUNGS: Mapping[str, SchedulerSpec | None] = {
    "with early rungs": EARLY,
    "with a late rung": LATE,
    "without rungs": None,
}
RACE = RaceSpec(seeds=8)
SAMPLERS = ("random", "sobol", "tpe", "cmaes", "cmaes-lr_adapt", "gp")
WITH_OPTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "cmaes-lr_adapt": ("cmaes", {"lr_adapt": True}),
}
"""The names in :data:`SAMPLERS` that are samplers with options."""
SLOW = ("gp",)
"""Samplers that take seconds for a search."""
SEEN, SHRUNKEN, ESTIMATED = choosing.CHOICES
Key = tuple[str, str]
"""A strategy, and its way of choosing."""
PEERS: Mapping[str, OptunaSearch] = {
    "Optuna's TPE with WilcoxonPruner, five seeds": OptunaSearch(pruner="wilcoxon", seeds=5),
    "Optuna's TPE with HyperbandPruner, five seeds": OptunaSearch(pruner="hyperband", seeds=5),
    "Optuna's TPE with HyperbandPruner, one seed": OptunaSearch(pruner="hyperband", seeds=1),
}
MOST_TO_PEERS = 0.7
MOST_TO_BASELINE = 0.5
POINTS = 64
"""Of the comparison of rungs with training everything."""
MOST_OF_RUNGS = 1 / 3
"""Of the env_steps of training everything."""
HELD = 0.9
"""Of the intervals of 95 %."""

Found = dict[Key, Sequence[Chosen]]
Peers = Mapping[str, Sequence[Chosen]]
"""The searches of each of :data:`PEERS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is searched."""

    searches: int
    """Of each strategy."""
    slow_searches: int
    """By samplers of :data:`SLOW`."""
    processes: int
    robots: Sequence[str] = table_of_bodies.ROBOTS
    samplers: Sequence[str] = SAMPLERS
    is_plain: bool = False
    """Whether trials have one seed each, and there are no races."""
    trainings: int = TRAININGS
    """The budget of a search, in trainings of one seed to their end; less where there are few
    bodies."""
    rungs_by: str | None = None
    """The measure of training's episodes that rungs compare by; None: returns."""

    def numbers(self, strategy: Strategy | OptunaSearch) -> range:
        is_slow = isinstance(strategy, Strategy) and strategy.sampler in SLOW
        return range(self.slow_searches if is_slow else self.searches)


def plain_strategies(samplers: Sequence[str]) -> dict[str, Strategy]:
    """Each sampler with each of :data:`RUNGS`: one seed a body, and no race."""
    found = {}
    for name, (how, rungs) in itertools.product(samplers, RUNGS.items()):
        sampler, options = WITH_OPTIONS.get(name, (name, {}))
        found[f"{name} {how}"] = Strategy(sampler=sampler, sampler_options=options, scheduler=rungs)
    return found


def strategies(samplers: Sequence[str]) -> Mapping[str, Strategy]:
    """The plain ones, with two seeds a body or a race, too, and races by other rules."""
    found = {}
    for name, plain in plain_strategies(samplers).items():
        found[name] = plain
        found[f"{name}, two seeds"] = replace(plain, seeds=2)
        found[f"{name}, raced"] = replace(plain, race=RACE)
    for rule in (racing_rules.within_bounds, racing_rules.by_budget_allocation):
        name = f"random without rungs, raced by {rule.__name__}"
        found[name] = Strategy(sampler="random", race=RACE, rule=rule)
    return found


def ways(strategy: Strategy) -> Sequence[str]:
    """Where all trials have as many seeds, shrinking changes no order."""
    return (SEEN, ESTIMATED) if strategy.race is None else (SEEN, SHRUNKEN, ESTIMATED)


def searches_on_tables(_repeats: int, extent: Extent) -> list[Line]:
    lines = []
    for robot in extent.robots:
        if table_of_bodies.table_file(robot).exists():
            make = plain_strategies if extent.is_plain else strategies
            known = make(extent.samplers)
            met = landscape_of_robot(robot, rungs_by=extent.rungs_by)
            if met.bodies:
                lines += of_landscape(robot, met, extent, known)
            else:
                lines.append(_without_measures(robot))
    return lines


def _without_measures(robot: str) -> Line:
    advice = (
        f"`python -m benchmarks.bodies make {robot} --first 0` trains bodies again, with measures"
    )
    return Line(
        what=f"{robot}: no body has measures at rungs; {advice}", measured="–", target="", good=True
    )


def landscape_of_robot(robot: str, *, rungs_by: str | None = None) -> Landscape:
    """What its table has.

    :param rungs_by: see :func:`landscape.of_table`.
    :raises OSError: it has none.
    """
    part = Part(robot=robot, first=0, bodies=1, run_dir=table_of_bodies.FOLDER)
    source = maker.experiment_of(part).job_source
    assert isinstance(source, SearchSource)
    assert source.search is not None
    return landscape.of_table(
        table_of_bodies.load(table_of_bodies.table_file(robot)),
        source.search.space,
        rungs_by=rungs_by,
    )


def of_landscape(
    robot: str, met: Landscape, extent: Extent, known: Mapping[str, Strategy]
) -> list[Line]:
    """The lines of one robot.

    :param known: the strategies to compare.
    """
    trainings = min(extent.trainings, met.bodies // BODIES_A_TRAINING)
    budget = trainings * met.env_steps
    what = f"{robot}, {met.bodies} bodies, {trainings} trainings"
    found: Found = {}
    with Comparison(met=met, processes=extent.processes) as comparison:
        for name, strategy in known.items():
            task = Task(
                strategy=strategy,
                numbers=extent.numbers(strategy),
                budget=budget,
                ways=ways(strategy),
            )
            found |= {(name, way): one for way, one in comparison.searched(task).items()}
        peers = {
            name: comparison.searched(
                Task(strategy=peer, numbers=extent.numbers(peer), budget=budget, ways=())
            )[OPTUNAS_OWN]
            for name, peer in PEERS.items()
        }
        lines = [
            *_of_table(robot, met, extent.rungs_by or "return"),
            *_of_strategies(what, found),
            *of_auto(what, found, sampler_of_auto(met, trainings), peers),
            *_of_best(what, found, peers),
        ]
        lines += _of_held_out(what, found, comparison, known, budget)
        lines += _of_rungs(robot, comparison, extent)
    return lines


def _of_table(robot: str, met: Landscape, rungs_by: str) -> list[Line]:
    lines = [
        figure(
            f"{robot}: share of the variance between bodies' means that is not noise",
            met.reliability,
        )
    ]
    lines += [
        figure(
            f"{robot}: rank correlation of one seed's {rungs_by} at {rung:,} env_steps with the value"
            " by the other seeds",
            landscape.foretold(met, met.returns[:, :, place]),
        )
        for place, rung in enumerate(met.rungs)
    ]
    what = f"{robot}: the same of one seed's value at the end"
    return [*lines, figure(what, landscape.foretold(met, met.values))]


def figure(what: str, value: float) -> Line:
    return Line(what=what, measured=f"{value:.2f}", target="", good=True, values=[value])


def baseline_of(found: Found) -> Key:
    """Random points, with those rungs that suit them best, and without anything else."""
    plain = {f"random {how}" for how, rungs in RUNGS.items() if rungs is not None}
    return best_of_first_half({key: one for key, one in found.items() if key[0] in plain})


def _of_strategies(what: str, found: Found) -> list[Line]:
    baseline = baseline_of(found)
    return [
        _ratio(
            f"{what}: {', '.join(key)} ({len(chosen):,} searches): regret / that of"
            f" {', '.join(baseline)}",
            ratio_of_means(regrets(chosen), regrets(found[baseline])),
        )
        for key, chosen in found.items()
    ]


def sampler_of_auto(met: Landscape, trainings: int) -> str:
    """What ``sampler = "auto"`` is in a search of so many trainings."""
    choices = sum(bool(dimension.choices) for dimension in met.space)
    numbers = len(met.space) - choices
    return sampler_for(SearchTraits(numbers=numbers, choices=choices, trials=trainings))


def of_auto(what: str, found: Found, sampler: str, peers: Peers) -> list[Line]:
    """``sampler = "auto"`` with the rungs of the baseline and without any, and by both choices,
    against random points; by the estimate also against Optuna alone, and how often intervals of
    fresh seeds hold. None where its sampler is not compared. Against random points only the line
    with rungs and by the estimate has an aim.
    """
    baseline = baseline_of(found)
    with_rungs = baseline[0].removeprefix("random ")
    lines = []
    for how, way in itertools.product((with_rungs, "without rungs"), (ESTIMATED, SEEN)):
        key = f"{sampler} {how}", way
        if key in found:
            has_aim = how == with_rungs and way == ESTIMATED
            name = f"{what}: auto ({sampler}) {how}, {way}"
            ratio = ratio_of_means(regrets(found[key]), regrets(found[baseline]))
            aim = MOST_TO_BASELINE if has_aim else None
            lines.append(_ratio(f"{name}: regret / that of {', '.join(baseline)}", ratio, aim))
            if way == ESTIMATED:
                lines += _against_peers(name, found[key], peers)
                lines.append(_fresh(name, found[key]))
    return lines


def _against_peers(name: str, chosen: Sequence[Chosen], peers: Peers) -> list[Line]:
    """:param peers: searches with the same numbers, and perhaps more after them."""
    return [
        _ratio(
            f"{name}: regret / that of {peer}",
            ratio_of_means(regrets(chosen), regrets(of_peer)),
            MOST_TO_PEERS if "five" in peer else None,
        )
        for peer, of_peer in peers.items()
    ]


def _fresh(name: str, chosen: Sequence[Chosen]) -> Line:
    what = f"{name}: 95 % intervals of five fresh seeds that hold the true value"
    return _held(what, [one.is_in_fresh for one in chosen])


def _ratio(what: str, ratio: Ratio, most: float | None = None) -> Line:
    """Met where the whole interval is."""
    return Line(
        what=what,
        measured=str(ratio),
        target="" if most is None else f"≤ {most:g}",
        good=most is None or ratio.high <= most,
        values=[ratio.middle, ratio.low, ratio.high],
    )


def best_of_first_half(found: Found) -> Key:
    """The one with the lowest mean regret in the first half of its searches: it is judged by the
    others, as the best of many is so by luck, too. Those with fewer searches than others, of a slow
    sampler, are left out: their means are the luckiest."""
    most = max(map(len, found.values()))
    means = {
        key: regrets(chosen)[: most // 2].mean()
        for key, chosen in found.items()
        if len(chosen) == most
    }
    return min(means, key=lambda key: means[key])


def _second_half(chosen: Sequence[Chosen]) -> Sequence[Chosen]:
    return chosen[len(chosen) // 2 :]


def _paired(chosen: Sequence[Chosen], others: Sequence[Chosen]) -> Sequence[Chosen]:
    """Of ``others`` the searches with the numbers of the second half of ``chosen``."""
    return others[len(chosen) // 2 : len(chosen)]


def _of_best(what: str, found: Found, peers: Peers) -> list[Line]:
    key = best_of_first_half(found)
    baseline = baseline_of(found)
    name = f"{what}: the best ({', '.join(key)})"
    judged = _second_half(found[key])
    of_baseline = regrets(_paired(found[key], found[baseline]))
    lines = [
        _ratio(
            f"{name}: regret / that of {', '.join(baseline)}",
            ratio_of_means(regrets(judged), of_baseline),
            MOST_TO_BASELINE,
        ),
        figure(
            f"{name}: p of a permutation test against that",
            p_of_pairs(regrets(judged), of_baseline),
        ),
        _ratio(
            f"{name}: regret without error in the choice among its bodies / that of"
            f" {', '.join(baseline)}",
            ratio_of_means(regrets_of_tried(judged), of_baseline),
        ),
        _ratio(
            f"{what}: {', '.join(baseline)}: regret without error in the choice / its own",
            ratio_of_means(regrets_of_tried(found[baseline]), regrets(found[baseline])),
        ),
    ]
    of_peers = {peer: _paired(found[key], chosen) for peer, chosen in peers.items()}
    lines += _against_peers(name, judged, of_peers)
    lines.append(_fresh(name, judged))
    if key[1] != SEEN:
        belief = f"{name}: 95 % intervals of the search's own belief that hold it"
        lines.append(_held(belief, [one.is_in_belief for one in judged]))
    return lines


def _held(what: str, holds: Sequence[bool]) -> Line:
    value = share(holds)
    return Line(
        what=what,
        measured=f"{value:.1%} of {len(holds)}",
        target=f"≥ {HELD:.0%}",
        good=value >= HELD,
        values=[value],
    )


def _of_held_out(
    what: str,
    found: Found,
    comparison: Comparison,
    known: Mapping[str, Strategy],
    budget: int,
) -> list[Line]:
    """What the best strategy is worth by seeds that it has not seen."""
    best = best_of_first_half(found)
    baseline = baseline_of(found)
    values = []
    for name, way in (best, baseline):
        task = Task(
            strategy=known[name],
            numbers=range(len(found[best])),
            budget=budget,
            ways=(way,),
            world="held out",
        )
        values.append(true_values(comparison.searched(task)[way]))
    gains = (values[0] - values[1]) / comparison.met.spread
    error = float(gains.std(ddof=1)) / len(gains) ** 0.5
    line = Line(
        what=f"{what}: {', '.join(best)}, on two seeds, judged by the other two: better than"
        f" {', '.join(baseline)}, in standard deviations between bodies",
        measured=f"{gains.mean():+.2f} ± {1.96 * error:.2f}, p = {p_of_pairs(*values):.3g}",
        target="",
        good=True,
        values=[float(gains.mean()), error],
    )
    return [line]


def _of_rungs(robot: str, comparison: Comparison, extent: Extent) -> list[Line]:
    """Random bodies of the table, of which one is chosen after rungs, or after all have come to
    their end."""
    met = comparison.met
    points = min(POINTS, met.bodies)
    what = f"{robot}, {points} random bodies, {extent.searches:,} searches"
    error = met.noise / met.seeds**0.5
    near = {}
    spent = {}
    for how, scheduler in RUNGS.items():
        task = Task(
            strategy=Strategy(sampler="random", scheduler=scheduler),
            numbers=range(extent.searches),
            budget=points * met.env_steps,
            ways=(SEEN,),
            trials=points,
        )
        chosen = comparison.searched(task)[SEEN]
        near[how] = np.array([one.best_tried - one.true_value <= error for one in chosen], float)
        spent[how] = float(np.mean([one.env_steps for one in chosen]))
    everything = next(how for how, scheduler in RUNGS.items() if scheduler is None)
    lines = [
        figure(f"{what}: choices within a standard error of the best, {how}", float(one.mean()))
        for how, one in near.items()
    ]
    for how in [one for one in RUNGS if one != everything]:
        share_of_env_steps = spent[how] / spent[everything]
        ratio = ratio_of_means(near[how], near[everything])
        lines += [
            Line(
                what=f"{what}: env_steps {how} / {everything}",
                measured=f"{share_of_env_steps:.3f}",
                target=f"≤ {MOST_OF_RUNGS:.3f}",
                good=share_of_env_steps <= MOST_OF_RUNGS,
                values=[share_of_env_steps],
            ),
            Line(
                what=f"{what}: such choices {how} / {everything}",
                measured=str(ratio),
                target="≥ 1",
                good=ratio.middle >= 1,
                values=[ratio.middle, ratio.low, ratio.high],
            ),
        ]
    return lines
