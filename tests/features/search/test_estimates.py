"""What a model of all finished trials says of their points, and ``best --by estimate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_helpers as commands
import numpy as np
from trial_helpers import Told, search_run

from orchestrator.features.search.declaration.spec import Dimension
from orchestrator.features.search.estimates import FEWEST, estimates
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


def test_estimates_are_nearer_to_the_truth_than_what_was_seen() -> None:
    trials, truth = noisy_trials()
    found = estimates(SPACE, trials)
    assert list(found) == list(range(60))
    of_model = np.array([found[number].mean for number in range(60)]) - truth
    seen = np.array([trial.values[0] for trial in trials if trial.values]) - truth
    assert np.sqrt((of_model**2).mean()) < 0.6 * np.sqrt((seen**2).mean())
    assert all(0 < one.error < 1.5 for one in found.values())
    assert estimates(SPACE, trials) == found, "the same trials have the same estimates"


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
    done = commands.succeed(
        "best", paths.root, "--json", "-n", "10", "--by", "estimate", cwd=tmp_path
    )
    shown = json.loads(done.stdout)
    means = [one["estimate"]["mean"] for one in shown]
    assert all(one["estimate"]["error"] >= 0 for one in shown)
    assert means == sorted(means, reverse=True)
    few = search_run(tmp_path / "few", [Told(values=[value]) for value in values[:3]])
    refused = commands.invoke("best", few.root, "--by", "estimate", cwd=tmp_path)
    assert refused.returncode == 2
