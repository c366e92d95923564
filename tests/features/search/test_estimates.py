"""What a model of all finished trials says of their points, and ``best --by estimate``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import command_helpers as commands
import numpy as np
import pytest
import threadpoolctl
from trial_helpers import Told, search_run

from orchestrator.features.search import gaussian_process
from orchestrator.features.search.declaration.spec import Dimension
from orchestrator.features.search.estimates import FEWEST, estimates
from orchestrator.features.search.gaussian_process import Belief, belief
from orchestrator.features.search.history import Trial

SPACE = (
    Dimension(key="a", low=0.0, high=1.0),
    Dimension(key="b", low=1e-4, high=1e-1, log=True),
    Dimension(key="c", choices=("flat", "tall")),
)


def noisy_trials(number: int = 60) -> tuple[list[Trial], list[float]]:
    """Trials of random points and their true values; the noise is as large as the spread."""
    chance = np.random.default_rng(1)
    trials = []
    truth = []
    for index in range(number):
        a, b = chance.random(2)
        is_tall = index % 2 == 0
        point = {"a": a, "b": SPACE[1].at(b), "c": "tall" if is_tall else "flat"}
        true = 3.0 * is_tall - 8 * (a - 0.6) ** 2 - 4 * (b - 0.3) ** 2
        truth.append(true)
        value = true + 1.5 * chance.standard_normal()
        trials.append(Trial(number=index, point=point, jobs=(), values=[value], is_over=True))
    return trials, truth


@pytest.mark.nightly
def test_estimates_are_nearer_to_the_truth_than_what_was_seen() -> None:
    trials, truth = noisy_trials()
    found = estimates(SPACE, trials)
    assert list(found) == list(range(60))
    of_model = np.array([found[number].mean for number in range(60)]) - truth
    seen = np.array([trial.values[0] for trial in trials if trial.values]) - truth
    assert np.sqrt((of_model**2).mean()) < 0.6 * np.sqrt((seen**2).mean())
    assert all(0 < one.error < 1.5 for one in found.values())
    assert estimates(SPACE, trials) == found, "the same trials have the same estimates"


def test_a_belief_from_few_values_is_not_too_sure() -> None:
    """The likeliest noise of so few is often none, and a belief as sure as that holds half as
    often as it says."""
    held = []
    for seed in range(40):
        chance = np.random.default_rng(seed)
        places = chance.random((12, 3))
        truth = places[:, 0]
        values = [[value] for value in truth + 0.3 * chance.standard_normal(12)]
        found = belief(places, values, places)
        best = int(found.means.argmax())
        held.append(abs(truth[best] - found.means[best]) <= 1.96 * found.errors[best])
    assert np.mean(held) >= 0.85


def some_values() -> tuple[np.ndarray[Any, Any], list[list[float]]]:
    """Of ten points, with one to four seeds each."""
    chance = np.random.default_rng(3)
    places = chance.random((10, 2))
    return places, [list(chance.normal(place[0], 0.3, 1 + n % 4)) for n, place in enumerate(places)]


def test_seeds_of_a_point_are_as_values_at_the_same_place() -> None:
    places, values = some_values()
    at = np.concatenate([places, [[0.5, 0.5]]])
    found = belief(places, values, at)
    one_by_one = np.repeat(places, [len(one) for one in values], axis=0)
    other = belief(one_by_one, [[value] for one in values for value in one], at)
    np.testing.assert_allclose(found.means, other.means)
    np.testing.assert_allclose(found.errors, other.errors)


def test_a_belief_is_that_of_a_normal_distribution_of_all_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With known parameters, and a prior of the mean that is as good as flat, by conditioning."""
    length, rough, noise = 0.4, 0.1, 0.3
    monkeypatch.setattr(gaussian_process, "LENGTHS", (length,))
    monkeypatch.setattr(gaussian_process, "ROUGHNESSES", (rough,))
    monkeypatch.setattr(gaussian_process, "NOISES", (noise,))
    places, values = some_values()
    at = np.array([places[2], [0.9, 0.1]])
    found = belief(places, values, at)

    seeds = np.repeat(places, [len(one) for one in values], axis=0)
    seen = np.concatenate(values)
    both = np.concatenate([seeds, at])
    apart = np.linalg.norm(both[:, None] - both[None], axis=-1)
    scaled = np.sqrt(5 / 2) * apart / length
    covariances = (1 - rough - noise) * (1 + scaled + scaled**2 / 3) * np.exp(-scaled)
    covariances += rough * (apart == 0)
    flat = 1e6
    with_mean = covariances + flat
    number = len(seen)
    of_seen = with_mean[:number, :number] + noise * np.eye(number)
    weights = np.linalg.solve(of_seen, with_mean[:number, number:])
    centre = seen.mean()
    np.testing.assert_allclose(found.means, centre + weights.T @ (seen - centre), rtol=1e-4)
    variances = np.diag(with_mean[number:, number:] - weights.T @ with_mean[:number, number:])
    explained = (seen - centre) @ np.linalg.solve(of_seen, seen - centre)
    scale = (seen.var() + explained) / (number - 2)
    np.testing.assert_allclose(found.errors, np.sqrt(scale * variances), rtol=1e-3)


def test_where_nothing_was_seen_the_belief_is_far_wider() -> None:
    chance = np.random.default_rng(4)
    places = 0.2 * chance.random((20, 2))
    values = [[float(place.sum() + 0.01 * chance.standard_normal())] for place in places]
    at = np.array([places[0], [1.0, 1.0]])
    near, far = belief(places, values, at).errors
    assert far > 5 * near


def test_a_belief_does_not_depend_on_the_unit_of_the_values() -> None:
    chance = np.random.default_rng(5)
    places = chance.random((15, 2))
    values = chance.standard_normal(15)
    found = belief(places, [[value] for value in values], places)
    for start, unit in ((1e6, -1e4), (0.0, 1e200), (0.0, 1e-200)):
        other = belief(places, [[start + unit * value] for value in values], places)
        np.testing.assert_allclose(other.means, start + unit * found.means)
        np.testing.assert_allclose(other.errors, abs(unit) * found.errors)


def test_a_trial_with_more_seeds_is_known_better() -> None:
    """Each seed is a value with the same noise: the mean of nine has a ninth of it."""
    trials, truth = noisy_trials()
    before = estimates(SPACE, trials)
    chance = np.random.default_rng(2)
    many = trials[5]
    for place in range(8):
        value = truth[5] + 1.5 * chance.standard_normal()
        seed = Trial(number=60 + place, point=many.point, jobs=(), values=[value], is_over=True)
        many.further.append(seed)
    many.of_seeds = list(many.values or ())
    after = estimates(SPACE, trials)
    assert after[5].error < 0.8 * before[5].error
    assert abs(after[5].mean - truth[5]) < 0.75


def test_equal_values_are_estimated_as_they_are() -> None:
    trials, _ = noisy_trials(FEWEST)
    for trial in trials:
        trial.values = [0.1]  # three times 0.1 have another mean
    assert {(one.mean, one.error) for one in estimates(SPACE, trials).values()} == {(0.1, 0.0)}


def test_a_seed_without_a_number_has_no_part_in_estimates() -> None:
    """The median of the seeds of a trial may be one all the same."""
    trials, _ = noisy_trials(20)
    trials[4].of_seeds = [*(trials[4].values or ())]
    expected = estimates(SPACE, trials)
    trials[4].of_seeds = [*trials[4].of_seeds, math.inf, math.nan]
    assert estimates(SPACE, trials) == expected


def test_a_model_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several wait for each other beside trainings."""
    trials, _ = noisy_trials(FEWEST)
    threads: list[int] = []

    def belief(places: Any, values: Any, at: Any) -> Belief:
        found = threadpoolctl.threadpool_info()
        threads.extend(one["num_threads"] for one in found if one["user_api"] == "blas")
        return Belief(means=np.zeros(len(at)), errors=np.zeros(len(at)))

    monkeypatch.setattr("orchestrator.features.search.gaussian_process.belief", belief)
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        estimates(SPACE, trials)
    assert set(threads) == {1}


def test_estimates_of_some_trials_rest_on_all() -> None:
    trials, _ = noisy_trials(20)
    found = estimates(SPACE, trials)
    of_two = estimates(SPACE, trials, of=[trials[7], trials[2]])
    assert list(of_two) == [7, 2]
    for number, one in of_two.items():
        assert one.mean == pytest.approx(found[number].mean)
        assert one.error == pytest.approx(found[number].error)


def test_few_trials_and_those_that_began_with_policies_of_others_have_no_estimates() -> None:
    trials, _ = noisy_trials()
    assert estimates(SPACE, trials[: FEWEST - 1]) == {}
    trials[3].parent = 1
    assert estimates(SPACE, trials) == {}


def test_best_shows_estimates_and_ranks_by_them(tmp_path: Path) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0, 7.0, 8.0, 0.0]
    paths = search_run(tmp_path / "run", [Told(values=[value]) for value in values])
    done = commands.succeed("best", paths.root, "--json", "-n", "10", cwd=tmp_path)
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    assert shown[0]["trial"] == 4
    assert [one["values"]["eval_mean"] for one in shown] == sorted(values, reverse=True)
    beliefs = [one["estimate"] for one in shown]
    assert None not in beliefs
    text = commands.succeed("best", paths.root, cwd=tmp_path).stdout
    assert "--by estimate" in text
    done = commands.succeed(
        "best", paths.root, "--json", "-n", "10", "--by", "estimate", cwd=tmp_path
    )
    shown = json.loads(done.stdout)
    means = [one["estimate"]["mean"] for one in shown]
    assert all(one["estimate"]["error"] >= 0 for one in shown)
    assert means == sorted(means, reverse=True)
    text = commands.succeed("best", paths.root, "--by", "estimate", cwd=tmp_path).stdout
    assert "by estimated eval_mean (largest first)" in text


@pytest.mark.parametrize(
    ("options", "table"),
    [(["--by", "env_steps"], {}), ([], {"race": {"seeds": 5}})],
    ids=["by another figure", "with a race"],
)
def test_estimates_are_of_the_objective_and_not_beside_what_a_race_believes(
    tmp_path: Path, options: list[str], table: dict[str, Any]
) -> None:
    values = [1.0, 2.0, 3.0, 4.0, 9.0, 5.0, 6.0, 7.0, 8.0, 0.0]
    told = [Told(values=[value]) for value in values]
    paths = search_run(tmp_path / "run", told, **table)
    done = commands.succeed("best", paths.root, "--json", *options, cwd=tmp_path)
    shown = json.loads(done.stdout)
    assert shown
    assert all(one["estimate"] is None for one in shown)
    assert all((one["believed"] is not None) == ("race" in table) for one in shown)


@pytest.mark.parametrize(
    ("trials", "table", "expected"),
    [
        ([Told(values=[1.0])] * 3, {}, f"{FEWEST} finished trials"),
        (
            [Told(values=[1.0, 2.0])] * 9,
            {
                "sampler": "nsga2",
                "objective": ["eval_mean", "energy_j"],
                "direction": ["maximize", "minimize"],
                "scheduler": {"kind": "none"},
            },
            "several objectives",
        ),
    ],
)
def test_where_there_are_no_estimates_the_reason_is_said(
    tmp_path: Path, trials: list[Told], table: dict[str, Any], expected: str
) -> None:
    paths = search_run(tmp_path / "run", trials, **table)
    refused = commands.invoke("best", paths.root, "--by", "estimate", cwd=tmp_path)
    assert refused.returncode == 2
    assert expected in refused.stderr


def test_trials_before_those_that_the_model_is_fitted_to_have_estimates_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.features.search.estimates.MOST", 20)
    trials, _ = noisy_trials(30)
    assert list(estimates(SPACE, trials)) == list(range(30))


def test_what_the_model_is_fitted_to_are_the_latest_trials_with_all_of_their_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchestrator.features.search.estimates.MOST", 20)
    trials, _ = noisy_trials(30)
    fitted: list[list[float]] = []

    def belief(places: Any, values: Any, at: Any) -> Belief:
        assert len(places) == len(values)
        fitted.extend(values)
        return Belief(means=np.zeros(len(at)), errors=np.zeros(len(at)))

    monkeypatch.setattr("orchestrator.features.search.gaussian_process.belief", belief)
    for trial in trials:
        trial.of_seeds = [float(trial.number)]
        for place in range(trial.number % 3):
            seed = Trial(number=30 + place, point=trial.point, jobs=(), values=[2.0], is_over=True)
            trial.further.append(seed)
    assert list(estimates(SPACE, trials)) == list(range(30))
    assert fitted == [[float(number)] + [2.0] * (number % 3) for number in range(10, 30)]
