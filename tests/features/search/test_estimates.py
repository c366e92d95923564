"""What a model of all finished trials says of their points, and ``best --by estimate``."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import command_helpers as commands
import numpy as np
import pytest
from trial_helpers import Told, search_run

from orchestrator.features.search.declaration.spec import Dimension
from orchestrator.features.search.estimates import FEWEST, estimates, predicted
from orchestrator.features.search.history import Trial

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("sklearn"), reason="needs scikit-learn, of the extra search"
)
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


@pytest.mark.slow
def test_estimates_are_nearer_to_the_truth_than_what_was_seen() -> None:
    trials, truth = noisy_trials()
    found = estimates(SPACE, trials)
    assert list(found) == list(range(60))
    of_model = np.array([found[number].mean for number in range(60)]) - truth
    seen = np.array([trial.values[0] for trial in trials if trial.values]) - truth
    assert np.sqrt((of_model**2).mean()) < 0.6 * np.sqrt((seen**2).mean())
    assert all(0 < one.error < 1.5 for one in found.values())
    assert estimates(SPACE, trials) == found, "the same trials have the same estimates"


def test_a_dozen_values_do_not_show_that_there_is_no_noise() -> None:
    """The likeliest noise of so few is often none: a belief as sure as that holds half as often."""
    held = []
    for seed in range(20):
        chance = np.random.default_rng(seed)
        places = chance.random((12, 3))
        truth = places[:, 0]
        means, errors = predicted(places, truth + 0.3 * chance.standard_normal(12), places)
        best = int(means.argmax())
        held.append(abs(truth[best] - means[best]) <= 1.96 * errors[best])
    assert np.mean(held) >= 0.75


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
        trial.values = [2.0]
    assert {(one.mean, one.error) for one in estimates(SPACE, trials).values()} == {(2.0, 0.0)}


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
    assert all(one["estimate"] is None for one in shown), "they take a while"
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


def test_what_the_model_is_fitted_to_are_whole_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest ones with all of their seeds, as many as have 20 values; at least one."""
    monkeypatch.setattr("orchestrator.features.search.estimates.MOST", 20)
    trials, _ = noisy_trials(30)
    fitted: list[int] = []

    def predicted(places: Any, values: Any, at: Any) -> Any:
        fitted.append(len(values))
        return np.zeros(len(at)), np.zeros(len(at))

    monkeypatch.setattr("orchestrator.features.search.estimates.predicted", predicted)
    for trial in trials:
        trial.of_seeds = [1.0]
        for place in range(trial.number % 3):
            seed = Trial(number=30 + place, point=trial.point, jobs=(), values=[2.0], is_over=True)
            trial.further.append(seed)
    assert list(estimates(SPACE, trials)) == list(range(30))
    assert fitted == [sum(1 + number % 3 for number in range(21, 30))] == [18]
    trials[-1].further *= 20
    assert list(estimates(SPACE, trials)) == list(range(30))
    assert fitted[1:] == [41]
