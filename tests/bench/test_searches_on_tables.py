"""Searches on a table of bodies: what they may spend, what they learn, and what they are judged by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import table_of_bodies
from benchmarks.bodies import (
    beliefs,
    choosing,
    compared_searches,
    landscape,
    racing_rules,
    searches_on_table,
    simulated_search,
)
from benchmarks.bodies.body_samplers import Bodies, BodySampler, body_sampler
from benchmarks.bodies.compared_searches import Chosen, Comparison, OptunaSearch, Task
from benchmarks.bodies.landscape import Landscape
from benchmarks.bodies.searches_on_table import Extent
from benchmarks.bodies.simulated_search import Found, Strategy, search
from benchmarks.table_of_bodies import MEASURES, RUNG_MEASURES, Table
from orchestrator.features.search import gaussian_process
from orchestrator.features.search.declaration.spec import (
    Dimension,
    RaceSpec,
    SchedulerSpec,
    SearchSpec,
)
from orchestrator.features.search.gaussian_process import Belief
from orchestrator.features.search.racing import Contender, Rule, shrunken
from orchestrator.features.search.searcher.samplers import TrialOutcome
from orchestrator.features.search.searcher.simple_samplers import RandomSampler
from orchestrator.features.search.searcher.space import Point, Space

pytestmark = pytest.mark.nightly

SPACE = (
    Dimension(key="params.thigh", low=0.6, high=1.5),
    Dimension(key="params.force", low=0.5, high=2.0, log=True),
)
ITERATION = 6_144
RUNGS = SchedulerSpec(kind="asha", min_env_steps=ITERATION, factor=3)
SEEDS = 4
N_RUNGS = 8
RACE = RaceSpec(seeds=8)
SLOW_TO_IMPORT = [pytest.param(name, marks=pytest.mark.nightly) for name in ("tpe", "gp")]


def table_of(bodies: int, noise: float = 0.0) -> Table:
    """Bodies with one best place, whose returns rise to their values, each with
    ``noise``."""
    chance = np.random.default_rng(0)
    units = chance.random((bodies, len(SPACE)))
    true = 10.0 - 10.0 * ((units - 0.3) ** 2).sum(axis=1)
    values = true[:, None] + noise * chance.normal(size=(bodies, SEEDS))
    rise = np.linspace(0.3, 1.0, N_RUNGS)
    measures = np.zeros((bodies, SEEDS, len(MEASURES)), np.float32)
    measures[:, :, MEASURES.index("eval_mean")] = values
    rung_measures = np.full((bodies, SEEDS, N_RUNGS, len(RUNG_MEASURES)), np.nan, np.float32)
    points = [[one.at(unit) for one, unit in zip(SPACE, row, strict=True)] for row in units]
    return Table(
        keys=tuple(dimension.key for dimension in SPACE),
        points=np.array(points, np.float32),
        rungs=ITERATION * np.arange(1, N_RUNGS + 1),
        returns=(values[:, :, None] * rise).astype(np.float32),
        measures=measures,
        rung_measures=rung_measures,
    )


def landscape_of(bodies: int, noise: float = 0.0) -> Landscape:
    return landscape.of_table(table_of(bodies, noise), SPACE)


def test_bodies_lie_where_their_values_are_in_the_space() -> None:
    found = landscape_of(20)
    units = np.random.default_rng(0).random((20, len(SPACE)))
    np.testing.assert_allclose(found.places, units, atol=1e-5)
    assert found.env_steps == N_RUNGS * ITERATION
    assert found.point(3)["params.force"] == pytest.approx(0.5 * 4 ** units[3, 1], rel=1e-5)


def test_rungs_compare_by_a_measure_the_bodies_that_have_it() -> None:
    table = table_of(5)
    distances = table.rung_measures[:, :, :, RUNG_MEASURES.index("distance_m")]
    distances[[1, 3]] = 7.0
    found = landscape.of_table(table, SPACE, rungs_by="distance_m")
    np.testing.assert_array_equal(found.returns, np.full((2, SEEDS, N_RUNGS), 7.0))
    values = table.measure("eval_mean")[[1, 3]]
    np.testing.assert_allclose(found.values, values)
    by_return = landscape.of_table(table, SPACE, rungs_by="ep_rew_mean")
    np.testing.assert_allclose(by_return.returns, table.returns[[1, 3]])
    assert landscape.of_table(table, SPACE).bodies == 5


def test_trials_of_a_table_have_seeds_of_their_bodies() -> None:
    trials = beliefs.of_bodies(landscape_of(20), 1, 8)
    np.testing.assert_allclose(trials.values, trials.truth)
    assert len({tuple(place) for place in trials.places}) == 8


def test_bodies_at_the_ends_of_a_range_are_within_it() -> None:
    table = table_of(2)
    table.points[:] = [[0.6, 0.5], [1.5, 2.0]]  # 0.6 has no such float32
    places = landscape.of_table(table, SPACE).places
    np.testing.assert_allclose(places, [[0, 0], [1, 1]], atol=1e-6)
    assert places.min() >= 0
    assert places.max() <= 1


def test_bodies_of_which_a_training_failed_are_left_out() -> None:
    table = table_of(5)
    table.measures[2, 1] = np.nan
    assert landscape.of_table(table, SPACE).bodies == 4


def test_widened_deviations_are_those_of_further_seeds_around_the_same_mean() -> None:
    found = landscape_of(50, noise=2.0)
    found.returns[7, 2, 0] = np.nan
    wide = landscape.widened(found)
    np.testing.assert_allclose(wide.means, found.means)
    np.testing.assert_allclose(
        wide.values.var(axis=1), found.values.var(axis=1, ddof=1), rtol=1e-12
    )
    assert np.isnan(wide.returns[7, 2, 0])
    assert np.isfinite(wide.returns).sum() == wide.returns.size - 1


def test_what_is_held_out_is_no_seed_of_the_search() -> None:
    found = landscape_of(30, noise=1.0)
    world = landscape.held_out(found, 3)
    seen = np.take_along_axis(found.values, world.drawn, axis=1)
    np.testing.assert_allclose((seen.mean(axis=1) + world.truth) / 2, found.means)


def test_resampled_trainings_are_worth_the_mean_of_the_seeds() -> None:
    found = landscape_of(200, noise=1.0)
    worlds = [landscape.resampled(found, number) for number in range(20)]
    values = [world.value(7, seed) for world in worlds for seed in range(world.most_seeds)]
    assert set(values) == set(found.values[7])
    assert np.mean(values) == pytest.approx(worlds[0].truth[7], abs=0.3)


def test_the_nearest_body_that_is_left_is_taken_once() -> None:
    bodies = Bodies(places=np.array([[0.1, 0.1], [0.2, 0.2], [0.9, 0.9]]))
    assert [bodies.take_nearest(np.array([0.0, 0.0])) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(AssertionError, match="a body is left"):
        bodies.take_nearest(np.array([0.0, 0.0]))


@pytest.mark.parametrize("sampler", ["random", "sobol", "cmaes", *SLOW_TO_IMPORT[:1]])
@pytest.mark.parametrize("scheduler", [None, RUNGS])
def test_without_noise_and_with_budget_for_all_the_best_is_found(
    sampler: str, scheduler: SchedulerSpec | None
) -> None:
    found = landscape_of(40)
    world = landscape.resampled(found, 0)
    strategy = Strategy(sampler=sampler, scheduler=scheduler)
    searched = search(world, strategy, budget=40 * found.env_steps, seed=1)
    assert len(set(searched.bodies)) == len(searched.trials) == 40
    for choose in (choosing.best_seen, choosing.best_shrunken):
        assert world.truth[choose(found, searched).body] == world.best


def spent(searched: Found) -> int:
    """env_steps of all trainings, from the trials."""
    return sum(trial.env_steps for trial in searched.history.trials)


@pytest.mark.parametrize("race", [None, RACE])
@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("scheduler", [None, RUNGS])
def test_a_search_spends_its_budget_and_no_more(
    scheduler: SchedulerSpec | None, seeds: int, race: RaceSpec | None
) -> None:
    found = landscape_of(200, noise=3.0)
    budget = 16 * found.env_steps
    strategy = Strategy(sampler="random", seeds=seeds, scheduler=scheduler, race=race)
    for number in range(5):
        searched = search(landscape.resampled(found, number), strategy, budget=budget, seed=number)
        assert searched.env_steps == spent(searched)
        assert budget - 2 * seeds * found.env_steps < searched.env_steps <= budget
        assert searched.raced <= RACE.share * budget
        assert race is not None or searched.raced == 0
        assert all(seeds + len(trial.further) <= 8 for trial in searched.trials)
        if scheduler is None and race is None:
            assert searched.env_steps == budget
            assert len(searched.finished) == len(searched.trials)


def test_a_race_gives_further_seeds_to_good_bodies() -> None:
    found = landscape_of(200, noise=3.0)
    strategy = Strategy(sampler="random", race=RACE)
    world = landscape.resampled(found, 0)
    searched = search(world, strategy, budget=20 * found.env_steps, seed=0)
    several = [trial for trial in searched.trials if trial.further]
    assert len(several) > 1
    others = [trial.of_seeds[0] for trial in searched.trials if not trial.further]
    assert np.mean([trial.of_seeds[0] for trial in several]) > np.mean(others)


class Hears:
    """Random points; what it is told is in ``heard``."""

    def __init__(self, spec: SearchSpec) -> None:
        self._random = RandomSampler(spec)
        self.heard: list[tuple[int, float]] = []

    def ask(self, number: int) -> Point:
        return self._random.ask(number)

    def tell(self, number: int, point: Point, outcome: TrialOutcome) -> None:
        assert outcome.values
        self.heard.append((number, outcome.values[0]))


@pytest.fixture
def hearing(monkeypatch: pytest.MonkeyPatch) -> list[Hears]:
    """The samplers of searches that a test makes."""
    made: list[Hears] = []

    def body_sampler(spec: SearchSpec, places: Any) -> BodySampler:
        made.append(Hears(spec))
        sampler: Any = made[-1]
        return BodySampler(sampler=sampler, space=Space(SPACE), bodies=Bodies(places=places))

    monkeypatch.setattr(simulated_search, "body_sampler", body_sampler)
    return made


def test_samplers_hear_of_every_trial_before_the_next_one(hearing: list[Hears]) -> None:
    """Further seeds come after all of them."""
    found = landscape_of(200, noise=3.0)
    strategy = Strategy(sampler="random", race=RACE)
    searched = search(landscape.resampled(found, 0), strategy, budget=60 * found.env_steps, seed=0)
    firsts = [(trial.index, trial.of_seeds[0]) for trial in searched.trials]
    assert hearing[0].heard == firsts
    assert searched.history.trials == [*searched.trials, *searched.history.further]


def test_a_trial_that_goes_on_at_once_is_told_at_its_end(hearing: list[Hears]) -> None:
    found = landscape_of(100)
    strategy = Strategy(sampler="random", scheduler=RUNGS)
    searched = search(landscape.resampled(found, 0), strategy, budget=20 * found.env_steps, seed=0)
    told = dict(hearing[0].heard)
    at_once = [trial for trial in searched.finished if told.get(trial.index) != trial.reached[0]]
    assert at_once, "it was the best of those before it"
    for trial in at_once:
        if trial.index in told:
            assert trial.values
            assert told[trial.index] in (trial.values[0], *trial.reached[1:])
    assert len(told) == len(hearing[0].heard), "each is told once"


def test_a_trial_is_worth_the_median_of_its_seeds_as_in_the_command_best() -> None:
    found = landscape_of(60, noise=3.0)
    world = landscape.resampled(found, 0)
    strategy = Strategy(sampler="random", seeds=3)
    searched = search(world, strategy, budget=60 * found.env_steps, seed=0)
    medians = {
        body: statistics.median(world.value(body, seed) for seed in range(3))
        for body in searched.bodies
    }
    choice = choosing.best_seen(found, searched)
    assert choice.mean == max(medians.values())
    assert medians[choice.body] == choice.mean


def test_estimates_of_a_raced_search_rest_on_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = landscape_of(100, noise=3.0)
    strategy = Strategy(sampler="random", race=RACE)
    searched = search(landscape.resampled(found, 0), strategy, budget=20 * found.env_steps, seed=0)
    fitted: list[Sequence[float]] = []

    def belief(places: Any, values: Any, at: Any) -> Belief:
        fitted.extend(values)
        means = np.arange(len(at), dtype=float)
        return Belief(means=means, errors=np.ones(len(at)))

    monkeypatch.setattr(gaussian_process, "belief", belief)
    choice = choosing.best_estimated(found, searched)
    assert fitted == [trial.seed_values for trial in searched.finished]
    assert sum(map(len, fitted)) == 20
    assert choice.body == searched.body(searched.finished[-1])


def test_what_is_best_at_the_last_rung_comes_to_its_end() -> None:
    found = landscape_of(100, noise=1.0)
    strategy = Strategy(sampler="random", scheduler=RUNGS)
    for number in range(10):
        searched = search(
            landscape.resampled(found, number),
            strategy,
            budget=6 * found.env_steps + ITERATION * number // 2,
            seed=number,
        )
        at_last = [trial for trial in searched.trials if len(trial.reached) == 2]
        assert max(at_last, key=lambda trial: trial.reached[-1] or -math.inf).is_over


@pytest.mark.parametrize("sampler", ["cmaes", *SLOW_TO_IMPORT])
def test_samplers_learn_of_the_bodies_that_were_trained(sampler: str) -> None:
    """Whatever is asked for, there is a body in one corner only: the other is proposed no more."""
    options: Mapping[str, Any] = {} if sampler == "cmaes" else {"n_startup_trials": 4}
    spec = SearchSpec(
        space=SPACE,
        sampler=sampler,
        sampler_options=options,
        objectives=("value",),
        directions=("maximize",),
        seed=3,
    )
    chance = np.random.default_rng(0)
    places = chance.random((400, len(SPACE)))
    asked = body_sampler(spec, places)
    proposed = []
    for number in range(40 if sampler != "gp" else 12):
        point = asked.ask(number)
        place = places[asked.taken[-1]]
        proposed.append(place)
        value = -float(np.abs(place - 0.9).sum())
        asked.tell(number, point, TrialOutcome(values=(value,)))
    assert np.abs(np.array(proposed[-5:]) - 0.9).mean() < 0.3


def contenders(*values: list[float]) -> list[Contender]:
    return [Contender(number=number, values=one) for number, one in enumerate(values)]


OTHER_RULES = [racing_rules.within_bounds, racing_rules.by_budget_allocation]


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_the_rival_of_the_leader_that_has_fewer_seeds_gets_one(rule: Rule) -> None:
    known = contenders([10.0, 9.0, 11.0], [9.5], [-20.0], [-22.0, -23.0])
    assert rule(known, shrunken(known), most_seeds=4) == 1


@pytest.mark.parametrize("rule", OTHER_RULES)
def test_nobody_gets_more_seeds_than_are_allowed(rule: Rule) -> None:
    for full in (contenders([10.0, 9.0], [9.5, 10.5]), contenders([10.0]), []):
        assert rule(full, shrunken(full), most_seeds=2) is None


def chosen_by(
    found: Landscape, strategy: Strategy | OptunaSearch, searches: int, budget: int, **others: Any
) -> list[Chosen]:
    with Comparison(met=found) as comparison:
        task = Task(
            strategy=strategy,
            numbers=range(searches),
            budget=budget * found.env_steps,
            ways=("the best seen",),
            **others,
        )
        (chosen,) = comparison.searched(task).values()
    return list(chosen)


def test_intervals_of_fresh_seeds_hold_the_true_value_of_the_winner() -> None:
    chosen = chosen_by(landscape_of(300, noise=3.0), Strategy(sampler="random"), 300, 8)
    held = compared_searches.share(one.is_in_fresh for one in chosen)
    assert held >= 0.88
    of_first = [one.mean - one.true_value for one in chosen]
    assert np.mean(of_first) > 1.0, "the best seen had luck, which the interval has not"


def test_beliefs_are_intervals_around_what_a_search_expects() -> None:
    chosen = Chosen(
        true_value=5.0, best_value=9.0, best_tried=7.0, env_steps=1, finished=1, mean=6.0, error=0.6
    )
    assert chosen.regret == 4.0
    assert chosen.regret_of_tried == 2.0
    assert chosen.is_in_belief
    assert not chosen.is_in_fresh, "none were trained"


def test_ratios_and_p_values_are_of_pairs() -> None:
    values = np.arange(1.0, 41.0)
    ratio = compared_searches.ratio_of_means(values, 2 * values)
    assert (ratio.middle, ratio.low, ratio.high) == (0.5, 0.5, 0.5)
    assert compared_searches.p_of_pairs(values, values) == 1.0
    assert compared_searches.p_of_pairs(values, values + 0.1) < 0.001
    noise = np.random.default_rng(0).normal(size=200)
    assert compared_searches.p_of_pairs(values[:40], values[:40] + noise[:40]) > 0.05


def regret_of(*regrets: float) -> list[Chosen]:
    return [
        Chosen(true_value=-one, best_value=0.0, best_tried=0.0, env_steps=1, finished=1)
        for one in regrets
    ]


def test_the_best_strategy_is_the_best_of_the_first_half_of_its_searches() -> None:
    found: searches_on_table.Found = {
        ("cmaes without rungs", "seen"): regret_of(1.0, 1.0, 9.0, 9.0),
        ("random with early rungs", "seen"): regret_of(4.0, 4.0, 1.0, 1.0),
        ("random with a late rung", "seen"): regret_of(3.0, 3.0, 2.0, 2.0),
        ("random without rungs", "seen"): regret_of(2.0, 2.0, 5.0, 5.0),
        ("gp without rungs", "seen"): regret_of(0.0, 0.0),
    }
    assert searches_on_table.best_of_first_half(found)[0] == "cmaes without rungs"
    assert searches_on_table.baseline_of(found)[0] == "random with a late rung"


def test_auto_is_judged_with_the_rungs_of_the_baseline_and_without_any() -> None:
    estimated = searches_on_table.ESTIMATED
    found: searches_on_table.Found = {
        ("random with early rungs", "seen"): regret_of(4.0, 4.0, 4.0, 4.0),
        ("random with a late rung", "seen"): regret_of(6.0, 6.0, 6.0, 6.0),
        ("tpe with early rungs", estimated): regret_of(1.0, 1.0, 1.0, 1.0),
        ("tpe with early rungs", searches_on_table.SEEN): regret_of(2.0, 2.0, 2.0, 2.0),
        ("tpe without rungs", estimated): regret_of(3.0, 3.0, 3.0, 3.0),
    }
    peers = {
        "Optuna, five seeds": regret_of(2.0, 2.0, 2.0, 2.0, 90.0),
        "Optuna, one seed": regret_of(*4 * [4.0]),
    }
    lines = searches_on_table.of_auto("here", found, "tpe", peers)
    with_rungs, to_five, to_one, fresh, seen, without, *_ = lines
    assert (to_five.values[0], to_five.target, to_five.good) == (0.5, "≤ 0.7", True)
    assert "auto (tpe) with early rungs" in to_five.what
    assert (to_one.values[0], to_one.target) == (0.25, "")
    assert "fresh seeds" in fresh.what
    assert (seen.values[0], seen.target) == (0.5, "")
    assert "the best seen" in seen.what
    assert "auto (tpe) with early rungs" in with_rungs.what
    assert (with_rungs.values[0], with_rungs.target, with_rungs.good) == (0.25, "≤ 0.5", True)
    assert "auto (tpe) without rungs" in without.what
    assert (without.values[0], without.target) == (0.75, "")
    assert searches_on_table.of_auto("here", found, "gp", peers) == []
    met = landscape_of(20)
    assert [searches_on_table.sampler_of_auto(met, one) for one in (19, 20)] == ["tpe", "gp"]


def test_rungs_say_what_their_rank_correlation_says() -> None:
    found = landscape_of(100)
    assert landscape.foretold(found, found.returns[:, :, 0]) == pytest.approx(1.0)
    assert landscape.foretold(found, -found.values) == pytest.approx(-1.0)


@pytest.mark.parametrize("seeds", [1, 5])
@pytest.mark.parametrize("pruner", ["wilcoxon", "hyperband"])
def test_optuna_alone_stays_within_the_budget(pruner: Any, seeds: int) -> None:
    found = landscape_of(100, noise=3.0)
    budget = 20
    for chosen in chosen_by(found, OptunaSearch(pruner=pruner, seeds=seeds), 5, budget):
        assert chosen.env_steps <= budget * found.env_steps
        assert chosen.env_steps > (budget - seeds) * found.env_steps
        assert chosen.finished > 0
        assert chosen.true_value <= chosen.best_tried <= chosen.best_value


@pytest.mark.parametrize("pruner", ["wilcoxon", "hyperband"])
def test_optuna_alone_finds_the_best_without_noise(pruner: Any) -> None:
    chosen = chosen_by(landscape_of(15), OptunaSearch(pruner=pruner, seeds=2), 3, 15 * 2)
    assert [one.regret for one in chosen] == [0.0, 0.0, 0.0]


def test_several_processes_find_the_same() -> None:
    found = landscape_of(60, noise=1.0)
    task = Task(
        strategy=Strategy(sampler="random", scheduler=RUNGS),
        numbers=range(60),
        budget=4 * found.env_steps,
        ways=tuple(choosing.CHOICES),
    )
    with Comparison(met=found) as alone, Comparison(met=found, processes=2) as together:
        one, other = (list(each.searched(task).values()) for each in (alone, together))
    assert [[c.true_value for c in way] for way in one] == [
        [c.true_value for c in way] for way in other
    ]


def test_the_part_of_the_benchmark_has_a_line_for_each_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runner.npz"
    chance = np.random.default_rng(0)
    made = table_of(96, noise=2.0)
    space = table_of_bodies.job_file("runner")["search"]["space"]
    ends = np.array([[one["low"], one["high"]] for one in space.values()])
    points = ends[:, 0] + chance.random((96, len(space))) * (ends[:, 1] - ends[:, 0])
    Table(
        keys=tuple(space),
        points=points.astype(np.float32),
        rungs=made.rungs,
        returns=made.returns,
        measures=made.measures,
        rung_measures=made.rung_measures,
    ).save(path)
    monkeypatch.setattr(table_of_bodies, "table_file", lambda robot: tmp_path / f"{robot}.npz")
    extent = Extent(searches=8, slow_searches=4, processes=1, samplers=("random", "cmaes"))
    lines = searches_on_table.searches_on_tables(1, extent)
    text = "\n".join(f"{line.what}: {line.measured}" for line in lines)
    assert "quadruped" not in text, "there is no table of it"
    for part in (
        "rank correlation",
        "cmaes without rungs, raced, the best shrunken (8 searches)",
        "HyperbandPruner, five seeds",
        "five fresh seeds",
        "regret without error in the choice among its bodies",
        "regret without error in the choice / its own",
        "judged by the other two",
        "env_steps with early rungs / without rungs",
    ):
        assert part in text
    assert all(np.isfinite(line.values).all() for line in lines)
    plain = replace(extent, samplers=("random",), is_plain=True)
    text = "\n".join(line.what for line in searches_on_table.searches_on_tables(1, plain))
    assert "random without rungs" in text
    assert "raced" not in text
