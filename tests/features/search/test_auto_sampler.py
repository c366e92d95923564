"""``sampler = "auto"``: what it is, that it is said, and that a search that goes on keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from searcher_helpers import examine_no_trials
from trial_helpers import Told, search_run

from orchestrator.core.errors import LedgerError, SpecError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.features.search import (
    auto_sampler,
    changed_search,
    report_seeds,
    sampler_check,
)
from orchestrator.features.search.auto_sampler import SearchTraits
from orchestrator.features.search.declaration import rules
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.searcher.simple_samplers import RandomSampler
from orchestrator.features.search.trials import TrialReader
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


def sampler_problem(experiment: Experiment) -> str:
    """What a run of it would be refused with; empty for nothing."""
    return str(sampler_check.examine(experiment, time_limit_s=60) or "")


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
    ("seeds", "search", "sampler", "said"),
    [
        (1, {"trials": 200}, "gp", "1 dimension with numbers and none with choices, and the first"),
        (1, {"trials": 400}, "cmaes", "the first budget is 400 trials"),
        (1, {"max_env_steps": 40_000_000}, "cmaes", "400 trials"),
        (2, {"max_env_steps": 40_000_000}, "gp", "200 trials"),
        (1, {"max_env_steps": 40_000_000, "trials": 30}, "gp", "30 trials"),
        (1, {"max_env_steps": 10}, "tpe", "1 trial"),
        (1, {"max_time": "8h"}, "tpe", "the first budget is a time"),
        (1, {"trials": 20, "space": {**RATE, **NETWORK}}, "tpe", "and 1 with choices"),
        (
            1,
            {"trials": 20, "objective": ["eval_mean", "wall_s"]},
            "nsga2",
            "there are 2 objectives",
        ),
    ],
)
def test_a_job_file_with_auto_has_a_sampler_and_says_why(
    place: Path, seeds: int, search: dict[str, Any], sampler: str, said: str
) -> None:
    experiment = searched(place, seeds, **search)
    assert search_of(experiment).sampler == sampler
    (line,) = [
        line for line in declaration_of(experiment).lines(experiment) if line.startswith("sampler")
    ]
    assert line.startswith(f"sampler auto: {sampler}, as ")
    assert said in line


def test_a_sampler_that_is_named_has_no_reason(place: Path) -> None:
    experiment = searched(place, sampler="random", trials=3)
    assert search_of(experiment).auto is None
    lines = declaration_of(experiment).lines(experiment)
    assert not any(line.startswith("sampler") for line in lines)
    default = from_mapping(
        {
            "name": "test",
            "jobs": [{**HOPPER, "task": "forward"}],
            "search": {"space": RATE, "trials": 3},
        },
        source="search.toml",
        base=place,
    )
    assert search_of(default).sampler == "tpe"


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (
            {"sampler_options": {"sigma": 0.1}},
            "search.sampler_options: are those of one sampler, and auto may be several; name the sampler",
        ),
        (
            {"measures": {"distance_m": {"low": 0, "high": 10}}},
            "search.sampler: auto is no sampler that fills an archive; name map-elites or cma-me",
        ),
        (
            {"measures": {"distance_m": {"low": 0, "high": 10}}, "race": 3},
            "search.sampler: auto is no sampler that fills an archive",
        ),
        ({"sampler": "atuo"}, 'search.sampler: unknown sampler "atuo"; did you mean "auto"?'),
    ],
)
def test_what_does_not_go_with_auto_has_one_message(
    place: Path, search: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, trials=20, **search)
    (problem,) = error.value.problems
    assert message in str(problem)


def test_a_package_that_is_missing_is_said_with_what_was_chosen(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "is_installed", lambda _: False)
    problem = sampler_problem(searched(place, trials=30))
    assert "search.sampler: auto is gp, which needs the package optuna" in problem
    job_file(place, 30)
    checked = commands.invoke("check", "jobs.toml", cwd=place)
    assert checked.returncode != 0
    assert "auto is gp, which needs the package optuna" in " ".join(checked.stdout.split())


# -- begun


def test_the_package_of_the_sampler_that_a_search_began_with_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])], sampler="auto")
    declare_chosen(paths, "cmaes")
    data = json.loads(SearchPaths(paths.root).declaration.read_text())["data"]
    for installed, problem in (
        (["cmaes"], ""),
        (["optuna"], "search.sampler: auto is cmaes, which needs the package cmaes"),
    ):
        monkeypatch.setattr(rules, "is_installed", installed.__contains__)
        now = from_mapping(data, source="jobs.toml", base=tmp_path)
        assert search_of(now).sampler == "tpe"
        for on_change in ("refuse", "keep", "restart"):
            options = RunOptions(run_dir=paths.root, on_change=on_change)
            resumed, _ = changed_search.on_change_applied(now, options)
            assert problem in sampler_problem(resumed)
            assert bool(problem) == bool(sampler_problem(resumed))


def test_what_reads_a_search_that_has_begun_has_the_sampler_that_it_began_with(
    tmp_path: Path,
) -> None:
    paths = search_run(tmp_path / "run", [Told(values=[3.0])], sampler="auto")
    file = SearchPaths(paths.root).declaration
    declared = json.loads(file.read_text())
    assert declared["auto_sampler"]["sampler"] == "tpe", "it has choices"
    reader = TrialReader.of(paths)
    assert reader is not None
    assert reader.search == search_of(changed_search.declared_experiment(paths))
    assert reader.search.sampler == "tpe"
    declare_chosen(paths, "random")
    reader = TrialReader.of(paths)
    begun = search_of(changed_search.declared_experiment(paths))
    for search in (None if reader is None else reader.search, begun):
        assert search is not None
        assert search.sampler == "random"
        assert str(search.auto) == "sampler auto: random, as the rules were others"
    file.write_text(json.dumps({**declared, "auto_sampler": {"sampler": "random"}}))
    with pytest.raises(LedgerError, match="cannot be read"):
        changed_search.declared_experiment(paths)
    with pytest.raises(LedgerError, match="cannot be read"):
        TrialReader.of(paths)


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


def test_several_seeds_of_a_search_have_one_sampler(tmp_path: Path) -> None:
    first = search_run(tmp_path / "one", [Told(values=[3.0])], sampler="auto")
    other = search_run(tmp_path / "two", [Told(values=[3.0])], sampler="auto", seed=1)
    declare_chosen(other, "random")
    facts: Any = {}
    with pytest.raises(UsageError, match=r'search\.sampler: "tpe" → "random"'):
        report_seeds.gather(first.root, facts, [other.root])


def job_file(folder: Path, trials: int) -> Path:
    path = folder / "jobs.toml"
    path.write_text(
        f'name = "search"\nmax_parallel = 2\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\n'
        'resources.start = "exec"\n'
        f'[search]\nsampler = "auto"\nobjective = "ep_rew_mean"\ntrials = {trials}\n'
        '[search.space]\n"ppo.gamma" = { low = 0.1, high = 0.9 }\n'
    )
    return path


@pytest.mark.nightly
def test_a_resumed_search_keeps_its_sampler_when_trials_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules here choose random points for 4 trials and fewer, and otherwise a sampler whose
    package is not installed in the end. The process of the search has other rules: those of the
    program.
    """

    def by_trials(traits: SearchTraits) -> str:
        return "random" if traits.trials is not None and traits.trials <= 4 else "cmaes"

    monkeypatch.setattr(auto_sampler, "sampler_for", by_trials)
    monkeypatch.setattr(rules, "is_installed", lambda _: True)
    commands.instant_workers(monkeypatch, tmp_path)
    examine_no_trials(monkeypatch)

    def command(*options: str) -> str:
        done = commands.invoke("run", "jobs.toml", "--run-dir", "run", *options, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    job_file(tmp_path, 4)
    first = "sampler auto: random, as the space has 1 dimension with numbers and none with choices"
    assert first in command("--dry-run")
    assert first in command()
    job_file(tmp_path, 6)
    monkeypatch.setattr(rules, "is_installed", lambda _: False)
    for options in (["--dry-run"], []):
        shown = command(*options)
        assert f"{first}, and the first budget is 4 trials" in shown
        assert "cmaes" not in shown
    paths = RunPaths(tmp_path / "run")
    reader = TrialReader.of(paths)
    assert reader is not None
    assert reader.search is not None
    assert (reader.search.sampler, reader.search.trials) == ("random", 6)
    with run_directory.reading_ledger(paths) as ledger:
        reader.update(ledger)
    at_random = RandomSampler(reader.search)
    assert [trial.point for trial in reader.asked] == [at_random.ask(one) for one in range(6)]
    commands.succeed("report", "run", cwd=tmp_path)
    facts = json.loads((tmp_path / "run/report/report.json").read_text())["search"]
    assert facts["sampler"] == "random"
    page = (tmp_path / "run/report/index.html").read_text()
    assert f"S{first[1:]}" in page
    monkeypatch.setattr(rules, "is_installed", lambda _: True)
    assert "cmaes, as" in command("--dry-run", "--fresh"), "which would begin another search"
