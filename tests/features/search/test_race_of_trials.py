"""``race`` of a search: trials that may be the best get further seeds, which count in their value."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from kill_helpers import killable
from trial_helpers import Told, search_run

from orchestrator.core.errors import OrchestratorError, SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.features.search import ranking, search_events
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.declaration.spec import Dimension, RaceSpec, SearchSpec
from orchestrator.features.search.history import History, Trial
from orchestrator.features.search.racing import contenders, shrunken
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.searcher.further_seeds import (
    fresh_seeds,
    further_seed,
    raced_trial,
)
from orchestrator.jobfile import Experiment, from_mapping

SPACE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def searched(place: Path, race: Any, seeds: int = 1, **search: Any) -> Experiment:
    """:param search: keys of its table; None: without that key."""
    given = {"space": SPACE, "trials": 20, "sampler": "random", "race": race, **search}
    table = {key: value for key, value in given.items() if value is not None}
    job = {**HOPPER, "task": "forward", "total_timesteps": 100_000, "seeds": list(range(seeds))}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def test_the_most_further_seeds_are_as_many_as_the_share_admits(place: Path) -> None:
    """0.35 / 0.65 of 13 is a little less than 7 in floating point, and 7 of 20 are 0.35."""
    experiment = searched(place, {"seeds": 5, "share": 0.35}, trials=13, seeds=1)
    assert declaration_of(experiment).limits(experiment).jobs_raced == 7


@pytest.mark.parametrize(
    ("race", "search", "where"),
    [
        ({"seeds": 5, "share": 1.0}, {}, "search.race.share"),
        ({"seeds": 5, "shar": 0.1}, {}, "search.race.shar"),
        (5, {"start": "nearest"}, "search.race"),
        (5, {"sampler": "nsga2", "objective": ["eval_mean", "wall_s"]}, "search.race"),
    ],
    ids=["share", "unknown key", "lineages", "several objectives"],
)
def test_a_bad_race_is_named(place: Path, race: Any, search: dict[str, Any], where: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, race, **search)
    assert [problem.where for problem in error.value.problems] == [where]


VALUE = '0.1 * (hash_of(spec["seed"], spec["hyperparameters"]["gamma"]) % 11) + spec["hyperparameters"]["gamma"]'


WORKER = commands.INSTANT.replace(
    "record = {",
    'spec = json.loads((job / "spec.json").read_text())\n'
    "def hash_of(*parts):\n"
    "    import hashlib\n"
    "    return int(hashlib.sha256(repr(parts).encode()).hexdigest(), 16)\n"
    "record = {",
    1,
).replace("1.0}", f"{VALUE}}}")


@pytest.fixture
def noisy_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands.examine_nothing(monkeypatch)
    monkeypatch.setattr(commands, "INSTANT", WORKER)
    commands.instant_workers(monkeypatch, tmp_path)


def search_file(folder: Path, table: str) -> Path:
    path = folder / "jobs.toml"
    path.write_text(
        f'name = "search"\nmax_parallel = 2\n{commands.TINY}\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{commands.HOPPER}"\ntask = "forward"\nseeds = [3]\n'
        'resources.start = "exec"\n'
        f'[search]\nobjective = "ep_rew_mean"\n{table}\n'
        '[search.space]\n"ppo.gamma" = { low = 0.1, high = 0.9 }\n'
    )
    return path


def events_of(run_dir: Path) -> Sequence[SearchEvent]:
    return search_events.events(RunPaths(run_dir))


def history_of(run_dir: Path) -> History:
    found = History()
    found.take_in(events_of(run_dir), SearchPaths(run_dir).events)
    return found


def spec_of(run_dir: Path, job_id: str) -> WorkerSpec:
    return WorkerSpec.from_json((run_dir / "jobs" / job_id / "spec.json").read_text())


@pytest.mark.usefixtures("noisy_workers")
def test_trials_that_may_be_the_best_get_further_seeds_within_their_share(tmp_path: Path) -> None:
    """Of trials that rungs let go on to their end; the best is then trained with seeds that no race
    has had.
    """
    table = (
        'sampler = "random"\ntrials = 6\nrace = { seeds = 3, share = 0.4 }\nreevaluate = 1\n'
        "scheduler = { min_env_steps = 128 }"
    )
    jobs = search_file(tmp_path, table)
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    history = history_of(tmp_path / "run")
    assert len(history.asked) == 6
    assert 0 < len(history.further) <= 4, "two for three trials"
    rows: Mapping[str, Any] = commands.summary(tmp_path / "run")
    for trial in history.asked:
        assert len(trial.further) <= 2
        ids = [job_id for one in trial.further for job_id in one.jobs]
        assert ids == [
            f"hopper-t{trial.number:05d}-s{1000 + place}" for place in range(len(trial.further))
        ]
        for job_id in ids:
            spec = spec_of(tmp_path / "run", job_id)
            assert spec.hyperparameters["gamma"] == trial.point["ppo.gamma"]
            assert (spec.init, spec.pause_at) == (None, None)
        values = [float(rows[job_id]["ep_rew_mean"]) for job_id in [*trial.jobs, *ids]]
        assert trial.seed_values == pytest.approx(values)
        assert trial.values == [pytest.approx(statistics.median(values))]
    (again,) = [trial for trial in history.trials if trial.is_reevaluation]
    assert spec_of(tmp_path / "run", again.jobs[0]).seed == 1002
    worth = shrunken(contenders(history.asked, "maximize", everything))
    assert again.reevaluates == max(worth, key=lambda number: worth[number].mean)
    told = [event.trial for event in events_of(tmp_path / "run") if event.kind == "told"]
    assert sorted(told, key=lambda number: number or 0) == [
        trial.number for trial in history.trials if not trial.is_reevaluation
    ]


UNEVEN = WORKER.replace(
    "record = {", "import time\ntime.sleep(0.07 * (os.getpid() % 4))\nrecord = {", 1
)
"""Which training ends first is a matter of chance."""


FIXED = """sampler = "cmaes"
sampler_options = { population_size = 4 }
trials = 14
order = "fixed"
race = { seeds = 4, share = 0.5 }
"""


def decisions(run_dir: Path) -> list[tuple[str, Any]]:
    """What was begun, and what the sampler was told, in this order."""
    keys = ("point", "jobs", "reevaluates", "role")
    found: list[tuple[str, Any]] = []
    for event in events_of(run_dir):
        if event.kind == "asked":
            found.append(("asked", [event.content.get(key) for key in keys]))
        elif event.kind == "told":
            found.append(("told", [event.trial, event.content["values"]]))
    return found


def known_events(run_dir: Path) -> int:
    with contextlib.suppress(OrchestratorError):
        return len(events_of(run_dir))
    return 0


def kill_one(kind: str, folder: Path, command: Sequence[str], new_events: int) -> None:
    """Run the search, and kill its searcher or its supervisor when it has come further."""
    before = known_events(folder / "run")
    with commands.start(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        try:
            commands.wait_until(
                lambda: (
                    run.poll() is not None or known_events(folder / "run") >= before + new_events
                ),
                "events",
                commands.LONG_PATIENCE_S,
            )
            pid = killable(folder).get(kind)
            if pid is not None and run.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.wait(commands.LONG_PATIENCE_S)
        finally:
            run.kill()


@pytest.mark.nightly
@pytest.mark.timeout(2 * commands.LONG_PATIENCE_S)
def test_killed_a_race_in_fixed_order_decides_the_same(tmp_path: Path) -> None:
    """Also in which order its sampler is told of what."""
    quiet, rough = tmp_path / "quiet", tmp_path / "rough"
    for folder in (quiet, rough):
        folder.mkdir()
        search_file(folder, FIXED)

    def command(folder: Path) -> list[str]:
        files = [str(folder / "jobs.toml"), "--run-dir", str(folder / "run")]
        return commands.instant("run", *files, worker=UNEVEN)

    for kind, new_events in (
        ("supervisor", 9),
        ("supervisor", 12),
        ("supervisor", 7),
        ("searcher", 8),
    ):
        kill_one(kind, rough, command(rough), new_events)
    for folder in (quiet, rough):
        done = subprocess.run(
            command(folder), cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert decisions(rough / "run") == decisions(quiet / "run")
    found = history_of(quiet / "run")
    assert len(found.asked) == 14
    assert 0 < len(found.further) <= 14
    assert found.trials == [*found.asked, *found.further], "new points come first"
    again = history_of(rough / "run")
    assert [one.values for one in again.trials] == [one.values for one in found.trials]
    assert sum(event.kind == "began" for event in events_of(rough / "run")) > 3


def history(
    *values: Sequence[float],
    jobs_at_once: int = 2,
    untrained: int = 0,
    search: SearchSpec | None = None,
) -> History:
    """Of trials with the values of their seeds; the later ones of each are of further seeds, which
    were begun when all trials were.
    """
    found = History(search=search)
    events: list[SearchEvent] = [SearchEvent(kind="began", content={"lanes": jobs_at_once})]
    for number in range(len(values) + untrained):
        content: dict[str, Any] = {"point": {"ppo.gamma": 0.5}, "jobs": [f"t{number}"]}
        events.append(SearchEvent(kind="asked", content=content))
    for number, of_seeds in enumerate(values):
        events.append(over(number, of_seeds[0]))
    made = len(values) + untrained
    for number, of_seeds in enumerate(values):
        for value in of_seeds[1:]:
            events.append(further(number))
            events.append(over(made, value))
            made += 1
    for place, event in enumerate(events):
        found.apply(replace(event, id=place + 1))
    return found


def further(number: int) -> SearchEvent:
    content = {"point": {"ppo.gamma": 0.5}, "jobs": [f"t{number}-s1000"], "reevaluates": number}
    return SearchEvent(kind="asked", content={**content, "role": "race"})


def over(number: int, value: float | None, env_steps: int = 100) -> SearchEvent:
    content: dict[str, Any] = {"measures": [], "env_steps": env_steps, "why": ""}
    if value is None:
        content |= {"values": None, "why": "it fell"}
    else:
        content |= {"values": [value], "of_seeds": [value]}
    return SearchEvent(kind="over", trial=number, content=content)


def everything(_: Trial) -> bool:
    return True


def raced_search(share: float = 0.4, **fields: Any) -> SearchSpec:
    known: dict[str, Any] = {
        "space": (Dimension(key="ppo.gamma"),),
        "sampler": "random",
        "objectives": ("x",),
        "directions": ("maximize",),
        "race": RaceSpec(seeds=5, share=share),
    }
    return SearchSpec(**{**known, **fields})


def test_further_seeds_keep_to_their_share_of_what_has_been_trained() -> None:
    tried = history([1.0], [2.0], [3.0])
    for share, is_allowed in ((0.2, False), (0.25, True), (0.5, True)):
        chosen = raced_trial(raced_search(share), tried, everything)
        assert (chosen is not None) == is_allowed, share
    tried.apply(further(2))
    assert raced_trial(raced_search(), tried, everything) is not None, "2 of 5"
    tried.apply(further(1))
    assert raced_trial(raced_search(), tried, everything) is None, "3 of 6"


def test_further_seeds_keep_to_their_share_of_the_budget_of_env_steps() -> None:
    """Though trials that trained when there were no more new points took more than is theirs."""
    tried = history([1.0], [2.0], [3.0], [2.5])
    assert raced_trial(raced_search(0.4, max_env_steps=249), tried, everything) is None
    budget = raced_search(0.4, max_env_steps=250)
    assert raced_trial(budget, tried, everything) is not None
    tried.apply(further(2))
    assert raced_trial(budget, tried, everything) is None
    assert raced_trial(raced_search(0.4), tried, everything) is not None


def test_the_direction_of_the_objective_decides_who_may_be_the_best() -> None:
    """Of four, of which one of the two best has a seed that has no value yet."""
    tried = history([1.0], [2.0], [3.0], [0.0])
    tried.apply(further(2))
    tried.apply(further(0))
    up, down = raced_search(0.5), raced_search(0.5, directions=("minimize",))
    assert raced_trial(up, tried, everything) is tried.trials[1]
    assert raced_trial(down, tried, everything) is tried.trials[3]


def test_the_value_of_a_trial_is_over_its_own_and_its_further_seeds() -> None:
    tried = history([1.0, 5.0, 2.0], [3.0])
    assert [trial.values for trial in tried.asked] == [[2.0], [3.0]]
    tried.apply(further(0))
    assert tried.asked[0].values == [2.0]
    tried.apply(over(4, None))
    assert tried.asked[0].values == [2.0], "it has failed"
    assert tried.whys
    tried.apply(SearchEvent(kind="retried", trial=4, content={}))
    tried.apply(over(4, 8.0))
    assert tried.asked[0].values == [3.5]
    assert tried.asked[0].seed_values == [1.0, 5.0, 2.0, 8.0]


def test_further_seeds_are_no_seeds_of_the_job_and_fresh_ones_none_of_a_race() -> None:
    search = SearchSpec(
        space=(),
        sampler="random",
        objectives=("x",),
        directions=("maximize",),
        race=RaceSpec(seeds=4),
    )
    tried = history([1.0, 2.0], [3.0])
    assert further_seed(tried.trials[1], [0]) == 1000
    assert further_seed(tried.trials[0], [0]) == 1001
    assert further_seed(tried.trials[0], [0, 1000]) == 1002
    assert fresh_seeds(search, [0], 2) == [1003, 1004]
    assert fresh_seeds(search, [0, 1000], 2) == [1003, 1004]
    assert fresh_seeds(replace(search, race=None), [0], 2) == [1000, 1001]


def raced_run(root: Path) -> RunPaths:
    told = [
        Told(values=[3.0]),
        Told(values=[9.0]),
        Told(values=[8.0]),
        Told(values=[1.0], reevaluates=1, role="race"),
        Told(values=[7.0], reevaluates=2, role="race"),
        Told(values=[2.0], reevaluates=1, role="race", seed=1001),
    ]
    return search_run(root, told, race=3)


@pytest.mark.usefixtures("undrawn")
def test_every_command_shows_the_value_over_all_seeds(tmp_path: Path) -> None:
    paths = raced_run(tmp_path / "run")
    shown = json.loads(commands.succeed("best", paths.root, "--json", cwd=tmp_path).stdout)
    rows = [(row["trial"], row["values"]["eval_mean"], len(row["jobs"])) for row in shown]
    assert rows == [(2, 7.5, 2), (0, 3.0, 1), (1, 2.0, 3)]
    assert [row["env_steps"] for row in shown] == [2000, 1000, 3000]
    status = " ".join(commands.invoke("status", paths.root, cwd=tmp_path).stdout.split())
    assert "best eval_mean 7.5 (trial 2)" in status
    commands.succeed("report", paths.root, cwd=tmp_path)
    facts = json.loads((paths.root / "report/report.json").read_text())["search"]
    assert {one["trial"]: one["values"] for one in facts["trials"]} == {
        0: [3.0],
        1: [2.0],
        2: [7.5],
    }


def test_few_lucky_seeds_come_after_many_that_are_nearly_as_good(tmp_path: Path) -> None:
    """945 over two seeds, 930 over five."""
    raced = {0: [860.0], 1: [1050.0, 930.0, 860.0, 1000.0]}
    told = [Told(values=[value]) for value in (1030.0, 810.0, 860.0, 820.0, 780.0)]
    told += [
        Told(values=[value], reevaluates=trial, role="race", seed=1000 + place)
        for trial, values in raced.items()
        for place, value in enumerate(values)
    ]
    paths = search_run(tmp_path / "run", told, race=5, aggregate="mean")
    found = ranking.read(paths.root, 3)
    assert [trial.number for trial in found.shown] == [1, 0, 2]
    assert [trial.values for trial in found.shown] == [[930], [945], [860]]
    assert found.facts()[0]["believed"]["mean"] == pytest.approx(907, abs=1)
