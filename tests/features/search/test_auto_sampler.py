"""``sampler = "auto"``: what it is, that it is said, and that a search that goes on keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER
from trial_helpers import Told, search_run

from orchestrator.core.paths import RunPaths
from orchestrator.features.search import (
    auto_sampler,
    changed_search,
)
from orchestrator.features.search.auto_sampler import SearchTraits
from orchestrator.features.search.declaration import rules
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile import Experiment, from_mapping

RATE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
NETWORK = {"policy_kwargs.net_arch": {"choices": [[32], [64]]}}


@pytest.mark.parametrize(
    ("numbers", "choices", "trials", "sampler"),
    [
        (1, 0, 1, "tpe"),
        (8, 0, 19, "tpe"),
        (8, 0, 20, "gp"),
        (8, 0, 300, "gp"),
        (9, 0, 300, "tpe"),
        (8, 0, 301, "cmaes"),
        (40, 0, 10_000, "cmaes"),
        (8, 1, 300, "tpe"),
        (8, 1, 10_000, "tpe"),
        (0, 2, 20, "tpe"),
        (3, 0, None, "tpe"),
    ],
)
def test_auto_depends_on_numbers_choices_and_budget(
    numbers: int, choices: int, trials: int | None, sampler: str
) -> None:
    traits = SearchTraits(numbers=numbers, choices=choices, trials=trials)
    assert auto_sampler.choose(traits).sampler == sampler
    several = SearchTraits(numbers=numbers, choices=choices, trials=trials, objectives=2)
    assert auto_sampler.choose(several).sampler == "nsga2"


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen does not depend on it."""
    monkeypatch.setattr(rules, "is_installed", lambda _: True)


def searched(place: Path, seeds: int = 1, **search: Any) -> Experiment:
    table = {"space": RATE, "sampler": "auto", **search}
    job = {**HOPPER, "task": "forward", "total_timesteps": 100_000, "seeds": list(range(seeds))}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def declare_chosen(paths: RunPaths, sampler: str) -> None:
    """As if the search had begun where the rules were others."""
    file = SearchPaths(paths.root).declaration
    chosen = {"sampler": sampler, "reason": "the rules were others"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "auto_sampler": chosen}))


def search_of(experiment: Experiment) -> SearchSpec:
    found = declaration_of(experiment).search
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("seeds", "search", "sampler"),
    [
        (1, {"trials": 200}, "gp"),
        (2, {"max_env_steps": 40_000_000}, "gp"),
        (1, {"max_env_steps": 40_000_000}, "cmaes"),
        (1, {"max_time": "8h"}, "tpe"),
        (1, {"trials": 20, "space": {**RATE, **NETWORK}}, "tpe"),
    ],
)
def test_a_job_file_with_auto_has_a_sampler_and_says_which(
    place: Path, seeds: int, search: dict[str, Any], sampler: str
) -> None:
    experiment = searched(place, seeds, **search)
    assert search_of(experiment).sampler == sampler
    lines = declaration_of(experiment).lines(experiment)
    assert any(line.startswith(f"sampler auto: {sampler}") for line in lines)


# -- begun


def test_reload_with_more_trials_keeps_the_sampler(tmp_path: Path) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])], sampler="auto")
    declare_chosen(paths, "random")
    declared = json.loads(SearchPaths(paths.root).declaration.read_text())
    data = {**declared["data"], "search": {**declared["data"]["search"], "trials": 9}}
    experiment = from_mapping(data, source="jobs.toml", base=tmp_path)
    assert search_of(experiment).sampler == "tpe"
    assert changed_search.take_over(experiment, paths) == ["trials: 1 → 9"]
    begun = search_of(changed_search.declared_experiment(paths))
    assert (begun.sampler, begun.trials) == ("random", 9)
