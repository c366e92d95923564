"""``race`` of a search: trials that may be the best get further seeds, which count in their value."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from jobfile_helpers import HOPPER
from kill_helpers import killable
from searcher_helpers import examine_no_trials
from trial_helpers import Told, search_run

from orchestrator.core.errors import OrchestratorError, SpecError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import is_installed
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import estimates, ranking, search_events, search_time
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import declaration_of
from orchestrator.features.search.declaration.spec import Dimension, RaceSpec, SearchSpec
from orchestrator.features.search.history import History, InconsistentEventError, Trial
from orchestrator.features.search.racing import Contender, contenders, shrunken
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher.further_seeds import (
    fresh_seeds,
    further_seed,
    raced_trial,
)
from orchestrator.features.search.searcher.points_budget import SpentSteps, has_all_points
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import Experiment, from_mapping

SPACE = {"ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}


def searched(place: Path, race: Any, seeds: int = 1, **search: Any) -> Experiment:
    """:param search: keys of its table; None: without that key."""
    given = {"space": SPACE, "trials": 20, "sampler": "random", "race": race, **search}
    table = {key: value for key, value in given.items() if value is not None}
    job = {**HOPPER, "task": "forward", "total_timesteps": 100_000, "seeds": list(range(seeds))}
    data = {"name": "test", "jobs": [job], "search": table}
    return from_mapping(data, source="search.toml", base=place)


def test_a_number_and_a_table_declare_the_same_race(place: Path) -> None:
    plain = searched(place, 5)
    table = searched(place, {"seeds": 5, "share": 0.25})
    assert declaration_of(plain).search == declaration_of(table).search
    assert written.differences(plain.declaration, table.declaration) == []
    other = searched(place, {"seeds": 5, "share": 0.3})
    assert written.differences(plain.declaration, other.declaration) == [
        "search.race.share: 0.25 → 0.3"
    ]


def test_what_it_may_cost_is_said(place: Path) -> None:
    """Of 20 trials with 100,000 env_steps each, 40 % of all are two thirds of those of trials."""
    experiment = searched(place, {"seeds": 5, "share": 0.4})
    limits = declaration_of(experiment).limits(experiment)
    assert (limits.jobs, limits.env_steps) == (20 + 13, 33 * 100_000)
    (line,) = [text for text in declaration_of(experiment).lines(experiment) if "further" in text]
    assert line == (
        "at the end trials that may be the best get further seeds, up to 5 with their own; at most 40% of the "
        "env_steps of all trials: at most 13 further jobs and 1,300,000 env_steps"
    )
    few = searched(place, {"seeds": 3, "share": 0.9}, seeds=2)
    assert declaration_of(few).limits(few).jobs == 20 * 2 + 20 * 1


def test_the_most_further_seeds_are_as_many_as_the_share_admits(place: Path) -> None:
    """0.35 / 0.65 of 13 is a little less than 7 in floating point, and 7 of 20 are 0.35."""
    experiment = searched(place, {"seeds": 5, "share": 0.35}, trials=13, seeds=1)
    assert declaration_of(experiment).limits(experiment).jobs_raced == 7


def test_of_a_budget_of_env_steps_or_time_the_share_is_kept_for_further_seeds(place: Path) -> None:
    budget = {"trials": None, "max_env_steps": 4_000_000, "max_time": "2h"}
    experiment = searched(place, {"seeds": 5, "share": 0.25}, **budget)
    (line,) = [text for text in declaration_of(experiment).lines(experiment) if "asked" in text]
    assert "after 3,000,000 env_steps or 1:30:00 (the rest is for further seeds)" in line
    assert declaration_of(experiment).limits(experiment).jobs_raced == 10
    search = declaration_of(experiment).search
    assert search is not None
    assert (search.share_of_points, replace(search, race=None).share_of_points) == (0.75, 1.0)


BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("one seed", 1, {}, "search.race: expected a whole number from 2 to"),
    ("truth", True, {}, "search.race: expected a whole number from 2 to"),
    ("text", "yes", {}, "search.race: expected a whole number from 2 to"),
    ("no seeds", {"share": 0.4}, {}, "search.race.seeds: missing"),
    ("all of them", {"seeds": 5, "share": 1.0}, {}, "search.race.share: expected a number above 0"),
    ("none", {"seeds": 5, "share": 0}, {}, "search.race.share: expected a number above 0"),
    ("unknown key", {"seeds": 5, "shar": 0.1}, {}, "search.race.shar: unknown key; did you mean"),
    (
        "lineages",
        5,
        {"start": "nearest"},
        'search.race: with start = "nearest" trials begin with policies of others',
    ),
    (
        "several objectives",
        5,
        {"sampler": "nsga2", "objective": ["eval_mean", "wall_s"]},
        "search.race: several objectives have no best trial",
    ),
    (
        "an archive",
        5,
        {
            "sampler": "map-elites",
            "measures": {"distance_m": {"low": 0, "high": 10}},
        },
        "search.race: an archive has a best trial in every cell",
    ),
    (
        "an archive of a class of the user's",
        5,
        {"sampler": "own:Own", "measures": {"distance_m": {"low": 0, "high": 10}}},
        "search.race: an archive has a best trial in every cell",
    ),
    (
        "measures without an archive",
        5,
        {"sampler": "random", "measures": {"distance_m": {"low": 0, "high": 10}}},
        "search.measures: are for map-elites and cma-me; random has no archive",
    ),
    (
        "measures and auto",
        5,
        {"sampler": "auto", "measures": {"distance_m": {"low": 0, "high": 10}}},
        "search.sampler: auto is no sampler that fills an archive",
    ),
    ("the worst seed", 5, {"aggregate": "min"}, 'search.race: with aggregate = "min" a trial is'),
]


@pytest.mark.parametrize(
    ("race", "search", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD]
)
def test_a_bad_race_is_named(place: Path, race: Any, search: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, race, **search)
    (problem,) = error.value.problems
    assert message in str(problem)


def test_a_race_needs_more_seeds_than_the_job_has(place: Path) -> None:
    with pytest.raises(SpecError) as error:
        searched(place, 3, seeds=3)
    (problem,) = error.value.problems
    assert "search.race.seeds: a trial has at most 3 seeds, and the job has 3 already" in str(
        problem
    )


# -- searches whose workers train nothing

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
    examine_no_trials(monkeypatch)
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
    with run_directory.opened_ledger(RunPaths(run_dir), read_only=True) as ledger:
        return search_events.events(ledger)


def history_of(run_dir: Path) -> History:
    found = History()
    found.take_in(events_of(run_dir), RunPaths(run_dir).ledger)
    return found


def spec_of(run_dir: Path, job_id: str) -> WorkerSpec:
    return WorkerSpec.from_json((run_dir / "jobs" / job_id / "spec.json").read_text())


@pytest.mark.usefixtures("noisy_workers")
def test_trials_that_may_be_the_best_get_further_seeds_within_their_share(tmp_path: Path) -> None:
    """Of trials that rungs let go on to their end; the best is then trained with seeds that no race
    has had.
    """
    table = (
        'sampler = "random"\ntrials = 12\nrace = { seeds = 3, share = 0.4 }\nreevaluate = 1\n'
        "scheduler = { min_env_steps = 128 }"
    )
    jobs = search_file(tmp_path, table)
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    history = history_of(tmp_path / "run")
    assert len(history.asked) == 12
    assert 0 < len(history.further) <= 8, "two for three trials"
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
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert len(commands.summary(tmp_path / "run")) == len(rows), "the same again does nothing"


@pytest.mark.nightly
@pytest.mark.usefixtures("noisy_workers")
def test_a_further_seed_that_fails_leaves_its_trial_as_it_was_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = WORKER.replace("\nif job.name", "\nif spec['seed'] >= 1000 or job.name").replace(
        ' and number == "0"', ""
    )
    assert fails != WORKER
    monkeypatch.setattr(commands, "INSTANT", fails)
    commands.instant_workers(monkeypatch, tmp_path)
    jobs = search_file(tmp_path, 'sampler = "random"\ntrials = 4\nrace = 2\n')
    text = jobs.read_text().replace("seeds = [3]", "seeds = [3]\nretry = { max_retries = 0 }")
    jobs.write_text(text)
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    history = history_of(tmp_path / "run")
    assert history.further
    assert all(one.values is None for one in history.further)
    assert all(len(one.seed_values) == 1 and one.values for one in history.asked)
    status = " ".join(commands.invoke("status", "run", cwd=tmp_path).stdout.split())
    assert f"{len(history.further)} further seed" in status
    assert "the knee fell off" in status
    shown = " ".join(commands.succeed("best", "run", cwd=tmp_path).stdout.split())
    assert "has failed, and has no part in its value: ValueError: the knee fell off" in shown
    commands.succeed("report", "run", cwd=tmp_path)
    assert "Failed further seeds" in (tmp_path / "run/report/index.html").read_text()


@pytest.mark.nightly
@pytest.mark.usefixtures("noisy_workers")
def test_a_race_has_its_share_of_env_steps_after_the_last_trial(tmp_path: Path) -> None:
    """A training has one env_step here: 15 of 20 are those of trials, and what was begun or waited
    then; with a budget of 28, 21.
    """
    table = 'sampler = "random"\nmax_env_steps = 20\nrace = { seeds = 4, share = 0.25 }'
    jobs = search_file(tmp_path, table)
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    history = history_of(tmp_path / "run")
    assert history.is_over
    assert history.trials == [*history.asked, *history.further], "new points come first"
    assert 15 <= len(history.asked) <= 15 + 2 + 2
    assert 3 <= len(history.further) <= 5
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    again = history_of(tmp_path / "run")
    assert len(again.trials) == len(history.trials), "the same again does nothing"
    jobs.write_text(jobs.read_text().replace("max_env_steps = 20", "max_env_steps = 28"))
    commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
    more = history_of(tmp_path / "run")
    assert 21 <= len(more.asked) <= 21 + 2 + 2, "seeds of the race before are not counted"
    assert len(history.further) < len(more.further) <= 7


FALLS = WORKER.replace(
    "\nif job.name",
    "\nif spec['seed'] >= 1000 and not (job / '../../../mended').exists() or job.name",
)
"""Further seeds fail before there is a file ``mended`` beside the run directory."""
HEARS = """
class Hears:
    def __init__(self, space, seed, directions):
        self.heard = []

    def ask(self, number):
        return {"ppo.gamma": 0.2 + 0.1 * number}

    def tell(self, number, point, outcome):
        pass

    def tell_again(self, number, point, outcome):
        self.heard.append(f"{number} {outcome.value!r}")
        with open("heard", "w") as file:
            file.write("\\n".join(self.heard))
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("noisy_workers")
def test_the_sampler_hears_once_of_a_further_seed_that_has_failed_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FALLS != WORKER
    monkeypatch.setattr(commands, "INSTANT", FALLS)
    commands.instant_workers(monkeypatch, tmp_path)
    (tmp_path / "hearing.py").write_text(HEARS)
    jobs = search_file(tmp_path, 'sampler = "hearing:Hears"\ntrials = 4\nrace = 2\n')
    text = jobs.read_text().replace("seeds = [3]", "seeds = [3]\nretry = { max_retries = 0 }")
    jobs.write_text(text)
    done = commands.invoke("run", jobs, "--run-dir", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    failed = history_of(tmp_path / "run").further
    assert failed
    heard = tmp_path / "heard"
    assert not heard.exists()
    (tmp_path / "mended").touch()
    commands.succeed("retry", "run", cwd=tmp_path)
    for _ in range(2):  # the second time, nothing is left to be done
        commands.succeed("run", jobs, "--run-dir", "run", cwd=tmp_path)
        further = history_of(tmp_path / "run").further
        assert sorted(heard.read_text().splitlines()) == sorted(
            f"{one.reevaluates} {one.values[0]!r}" for one in further if one.values
        )
    assert {one.number for one in failed} <= {one.number for one in further if one.values}


# -- killed

UNEVEN = WORKER.replace(
    "record = {", "import time\ntime.sleep(0.07 * (os.getpid() % 4))\nrecord = {", 1
)
"""Which training ends first is a matter of chance."""
PROGRAM = commands.INSTANTS.replace(repr(commands.INSTANT), repr(UNEVEN))
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
        return len(events_of(run_dir)) if (run_dir / "ledger.sqlite3").exists() else 0
    return 0


def kill_one(kind: str, folder: Path, command: Sequence[str], new_events: int) -> None:
    """Run the search, and kill its searcher, its supervisor or both and a worker when it has come
    further.
    """
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
            others = killable(folder)
            pids = {
                "supervisor": [run.pid],
                "searcher": [others.get("searcher")],
                "everything": [others.get("worker"), others.get("searcher"), run.pid],
            }
            for pid in pids[kind]:
                if pid is not None and run.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if kind == "searcher":
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
        return [sys.executable, "-c", PROGRAM, "run", *files]

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


REAL = """sampler = "random"
trials = 5
order = "fixed"
start = "reference"
race = { seeds = 3, share = 0.5 }
scheduler = { min_env_steps = 128, factor = 2 }
"""


@pytest.mark.nightly
@pytest.mark.timeout(4 * commands.LONG_PATIENCE_S)
def test_killed_a_race_with_rungs_and_a_reference_trains_the_same_weights(tmp_path: Path) -> None:
    quiet, rough = tmp_path / "quiet", tmp_path / "rough"
    for folder in (quiet, rough):
        folder.mkdir()
        path = search_file(folder, REAL)
        retry = "seeds = [3]\nretry = { max_retries = 20 }"
        path.write_text(path.read_text().replace("seeds = [3]", retry))
    for new_events in (3, 6, 6, 5):
        arguments = ["run", str(rough / "jobs.toml"), "--run-dir", str(rough / "run")]
        kill_one("everything", rough, commands.command(*arguments), new_events)
        commands.wait_until(lambda: "worker" not in killable(rough), "no worker is left")
    for folder in (quiet, rough):
        commands.succeed("run", folder / "jobs.toml", "--run-dir", "run", cwd=folder)
    assert decisions(rough / "run") == decisions(quiet / "run")
    found = history_of(quiet / "run")
    assert found.further, "some came to their end"
    assert {one.parent for one in found.further} == {0}
    columns = ("state", "weights_sha256", "env_steps", "ep_rew_mean")
    both = [
        {job_id: [row[name] for name in columns] for job_id, row in rows.items()}
        for rows in (commands.summary(quiet / "run"), commands.summary(rough / "run"))
    ]
    assert both[0] == both[1]
    assert sum(event.kind == "began" for event in events_of(rough / "run")) > 3


# -- what is decided, and when


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


def spent(together: int, of_seeds: int = 0) -> Callable[[], SpentSteps]:
    return lambda: SpentSteps(all=together, of_seeds=of_seeds)


def test_what_seeds_have_taken_is_no_part_of_what_points_have() -> None:
    tried = history([1.0, 1.5], [2.0], [3.0])
    of_env_steps = raced_search(0.25, max_env_steps=400)
    assert has_all_points(of_env_steps, tried, spent(300))
    assert not has_all_points(of_env_steps, tried, spent(300, 1))
    assert not has_all_points(of_env_steps, tried, spent(399, 100))
    assert has_all_points(of_env_steps, tried, spent(400, 200)), "all of it is used up"
    assert not has_all_points(replace(of_env_steps, race=None), tried, spent(399))
    of_time = raced_search(0.25, max_time_s=400.0)
    for elapsed_s, points_s, has_all in (
        (300.0, 300.0, True),
        (301.0, 299.0, False),
        (400.0, 200.0, True),
    ):
        tried.elapsed_s, tried.points_s = elapsed_s, points_s
        assert has_all_points(of_time, tried, spent(0)) == has_all
    assert has_all_points(raced_search(trials=3), tried, spent(0))
    assert not has_all_points(raced_search(trials=4), tried, spent(0))


def test_time_in_which_only_further_seeds_train_is_not_that_of_points() -> None:
    """However fast these are, so that no new points come amid them."""
    tried = History()
    ask = {"point": {"ppo.gamma": 0.5}, "jobs": ["t"]}
    events = [
        SearchEvent(kind="began", content={"lanes": 2}),
        SearchEvent(kind="asked", content=ask),
        SearchEvent(kind="asked", content=ask),
        over(0, 1.0),
        further(0),
        over(1, 2.0),  # until here, a trial trains
        over(2, 1.5),
        further(1),
        over(3, 2.5),
        SearchEvent(kind="asked", content=ask),
        over(4, 3.0),
    ]
    found = []
    for place, event in enumerate(events):
        tried.apply(replace(event, id=place + 1, at=10.0 * place))
        found.append((tried.elapsed_s, tried.points_s))
    assert found[5] == (50.0, 50.0)
    assert found[8] == (80.0, 50.0)
    assert found[10] == (100.0, 60.0), "the last trial, but not the time before it was asked for"


def test_seeds_that_fail_or_have_no_finite_value_count_against_the_most() -> None:
    tried = history([1.0], [3.0], [2.9])
    known = {one.number: one for one in contenders(tried.asked, "maximize", everything)}
    assert known[1] == Contender(number=1, values=[3.0])
    tried.apply(further(1))
    tried.apply(over(3, None))
    tried.apply(further(1))
    tried.apply(over(4, -math.inf))
    tried.apply(further(1))
    known = {one.number: one for one in contenders(tried.asked, "maximize", everything)}
    assert known[1] == Contender(number=1, values=[3.0], pending=1, lost=2)
    assert known[1].seeds == 4
    first = contenders(tried.asked, "maximize", lambda one: not one.is_further_seed)
    assert first[1] == Contender(number=1, values=[3.0], pending=3)


def test_the_direction_of_the_objective_decides_who_may_be_the_best() -> None:
    """Of four, of which one of the two best has a seed that has no value yet."""
    tried = history([1.0], [2.0], [3.0], [0.0])
    tried.apply(further(2))
    tried.apply(further(0))
    up, down = raced_search(0.5), raced_search(0.5, directions=("minimize",))
    assert raced_trial(up, tried, everything) is tried.trials[1]
    assert raced_trial(down, tried, everything) is tried.trials[3]


def test_what_is_not_known_yet_is_as_good_as_not_there() -> None:
    tried = history([1.0], [2.0], [3.0], [9.0])
    tried.apply(further(2))
    chosen = raced_trial(raced_search(), tried, lambda trial: trial.number < 3)
    assert chosen is tried.trials[1], "the leader, 2, has a further seed that waits"
    seed = history([1.0], [3.0, -9.0], [2.0])
    blind = raced_trial(raced_search(0.5), seed, lambda trial: not trial.is_further_seed)
    assert blind is seed.trials[2], "the further seed of the best is one that waits"


def test_a_model_of_all_points_decides_who_may_be_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From eight trials on, and while it takes all of them: two values are as good, and the neighbours
    of one of them are bad.
    """
    near_bad = {0.9: 5.0, 0.88: -4.0, 0.92: -4.2, 0.86: -3.9, 0.94: -4.1}
    near_good = {0.3: 4.9, 0.28: 4.5, 0.32: 4.6, 0.26: 4.4, 0.34: 4.3}
    values = {**near_bad, **near_good}
    tried = history(*[[value] for value in values.values()])
    for trial, place in zip(tried.asked, values, strict=True):
        trial.point = {"ppo.gamma": place}
    space = (Dimension(key="ppo.gamma", low=0.0, high=1.0),)
    chosen = raced_trial(raced_search(0.5, space=space), tried, everything)
    assert chosen is not None
    assert chosen.number >= len(near_bad), "not that of the best value, whose neighbours are bad"
    search = raced_search(0.5, space=space)
    seven = raced_trial(search, tried, lambda trial: trial.number <= 6)
    assert seven is not None
    assert seven.number in (0, 5), "by their values alone"
    monkeypatch.setattr(estimates, "MOST", 9)
    many = raced_trial(search, tried, everything)
    assert many is not None
    assert many.number in (0, 5), "a model of some of them would not know the others"


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


def test_a_further_seed_of_what_has_no_value_is_damage() -> None:
    tried = history([1.0], untrained=1)
    for event in (
        further(1),
        replace(further(0), content={**further(0).content, "reevaluates": None}),
    ):
        with pytest.raises(InconsistentEventError):
            tried.apply(event)


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


OWN = """
class Own:
    def __init__(self, space, seed, directions):
        self.heard = []

    def ask(self, number):
        return {"ppo.gamma": 0.5}

    def tell(self, number, point, outcome):
        self.heard.append(("tell", number, outcome.values))

    def tell_again(self, number, point, outcome):
        self.heard.append(("again", number, outcome.value, outcome.value_of_trial))
"""


def test_a_sampler_of_the_user_hears_of_further_seeds_if_it_has_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the value of the trial over those seeds that it was told of so far."""
    (tmp_path / "own_racer.py").write_text(OWN)
    deaf = OWN.partition("    def tell_again")[0]
    (tmp_path / "deaf_racer.py").write_text(deaf)
    monkeypatch.setattr(sys, "path", [*sys.path])
    expected = [
        ("tell", 0, (1.0,)),
        ("tell", 1, (3.0,)),
        ("again", 0, 5.0, 3.0),
        ("again", 0, 9.0, 5.0),
    ]
    for module, heard in (("own_racer", expected), ("deaf_racer", expected[:2])):
        search = SearchSpec(
            space=(Dimension(key="ppo.gamma"),),
            sampler=f"{module}:Own",
            objectives=("x",),
            directions=("maximize",),
            race=RaceSpec(seeds=4),
        )
        tried = history([1.0, 5.0, 9.0], [3.0])
        proposals = Proposals(
            search, tmp_path / "pickle", tmp_path, 1, Watchdog(), tells_at_rungs=False
        )
        for number in range(2):
            proposals.ask(number)
        for number, value in enumerate((1.0, 3.0, 5.0, 9.0)):
            content = {"values": [value], "measures": [], "env_steps": 100}
            told = SearchEvent(kind="told", trial=number, content=content, id=50 + number)
            tried.apply(told)
            proposals.tell(told, tried)
        assert proposals._sampler.heard == heard  # type: ignore[attr-defined]


# -- what is shown


def raced_run(root: Path, *, is_over: bool = True, sign: float = 1.0, **search: Any) -> RunPaths:
    told = [
        Told(values=[sign * 3.0]),
        Told(values=[sign * 9.0]),
        Told(values=[sign * 8.0]),
        Told(values=[sign * 1.0], reevaluates=1, role="race"),
        Told(values=[sign * 7.0], reevaluates=2, role="race"),
        Told(values=[sign * 2.0], reevaluates=1, role="race", seed=1001),
    ]
    return search_run(root, told, race=3, is_over=is_over, **search)


def test_every_command_shows_the_value_over_all_seeds(tmp_path: Path) -> None:
    paths = raced_run(tmp_path / "run")
    shown = json.loads(commands.succeed("best", paths.root, "--json", cwd=tmp_path).stdout)
    rows = [(row["trial"], row["values"]["eval_mean"], len(row["jobs"])) for row in shown]
    assert rows == [(2, 7.5, 2), (0, 3.0, 1), (1, 2.0, 3)]
    assert [row["env_steps"] for row in shown] == [2000, 1000, 3000]
    status = " ".join(commands.invoke("status", paths.root, cwd=tmp_path).stdout.split())
    assert "3 of 6 trials" in status
    assert "best eval_mean 7.5 (trial 2)" in status
    assert "3 further seeds" in status
    commands.succeed("report", paths.root, cwd=tmp_path)
    page = (paths.root / "report/index.html").read_text()
    assert "Trials that may be the best got further seeds" in page
    facts = json.loads((paths.root / "report/report.json").read_text())["search"]
    assert {one["trial"]: one["values"] for one in facts["trials"]} == {
        0: [3.0],
        1: [2.0],
        2: [7.5],
    }
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
        spent = search_time.spent_budget(ledger)
    assert [trial.number for trial in reader.front] == [2]
    assert [trial.number for trial in reader.trials] == [0, 1, 2]
    assert reader.repeated == {}
    assert (spent.trials, spent.repeated, spent.raced) == (3, 0, 3)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("sign", [1.0, pytest.param(-1.0, marks=pytest.mark.nightly)])
def test_few_lucky_seeds_come_after_many_that_are_nearly_as_good(
    tmp_path: Path, sign: float
) -> None:
    """945 over two seeds, 930 over five."""
    raced = {0: [860.0], 1: [1050.0, 930.0, 860.0, 1000.0]}
    told = [Told(values=[sign * value]) for value in (1030.0, 810.0, 860.0, 820.0, 780.0)]
    told += [
        Told(values=[sign * value], reevaluates=trial, role="race", seed=1000 + place)
        for trial, values in raced.items()
        for place, value in enumerate(values)
    ]
    direction = "maximize" if sign > 0 else "minimize"
    options: dict[str, Any] = {"race": 5, "aggregate": "mean", "direction": direction}
    paths = search_run(tmp_path / "run", told, **options)
    found = ranking.read(paths.root, 3)
    assert [trial.number for trial in found.shown] == [1, 0, 2]
    assert [trial.values for trial in found.shown] == [[sign * 930], [sign * 945], [sign * 860]]
    facts = found.facts()
    assert facts[0]["believed"]["mean"] == pytest.approx(sign * 907, abs=1)
    assert 20 < facts[0]["believed"]["error"] < facts[1]["believed"]["error"]
    text = " ".join(commands.succeed("best", paths.root, cwd=tmp_path).stdout.split())
    assert "by believed eval_mean" in text
    by_figure = ranking.read(paths.root, 3, "total_timesteps")
    assert (by_figure.believed, by_figure.facts()[0]["believed"]) == ({}, None)
    reader = TrialReader.of(paths)
    assert reader is not None
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        reader.update(ledger)
    assert [trial.number for trial in reader.front] == [1]
    assert [trial.number for trial in reader.best(3)] == [1, 0, 2]
    commands.succeed("report", paths.root, cwd=tmp_path)
    reported = json.loads((paths.root / "report/report.json").read_text())["search"]
    assert reported["best"] == [1, 0, 2, 3, 4]
    assert reported["trials"][1]["believed"] == facts[0]["believed"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("sign", [pytest.param(1.0, marks=pytest.mark.nightly), -1.0])
def test_the_best_so_far_of_a_report_is_what_was_known_then(tmp_path: Path, sign: float) -> None:
    """The first seeds are 3, 9 and 8; then trial 1 has 1, too, and trial 2 has 7."""
    direction = "maximize" if sign > 0 else "minimize"
    paths = raced_run(tmp_path / "run", sign=sign, aggregate="mean", direction=direction)
    commands.succeed("report", paths.root, cwd=tmp_path)
    facts = json.loads((paths.root / "report/report.json").read_text())["search"]
    steps = [(one["trial"], sign * one["value"]) for one in facts["improvements"]["eval_mean"]]
    assert steps == [(0, 3.0), (1, 9.0), (2, 8.0), (2, 7.5)]
    spent = [one["env_steps"] for one in facts["improvements"]["eval_mean"]]
    assert spent == [1000, 2000, 4000, 5000]
    assert facts["spent"]["1"][0] == 2000
    assert facts["best"][0] == 2


@pytest.mark.skipif(not is_installed("optuna"), reason="needs Optuna, of the extra search")
def test_the_journal_has_the_value_over_all_seeds(tmp_path: Path) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    paths = raced_run(tmp_path / "run")
    file = tmp_path / "journal.log"
    commands.succeed("search", "export", paths.root, "--out", file, cwd=tmp_path)
    study = optuna.load_study(
        study_name=None, storage=JournalStorage(JournalFileBackend(str(file)))
    )
    assert [trial.value for trial in study.trials] == [3.0, 2.0, 7.5]
    assert study.trials[1].user_attrs["seed_values"] == [9.0, 1.0, 2.0]
    assert study.trials[1].user_attrs["further_jobs"] == [
        "hopper-t00001-s1000",
        "hopper-t00001-s1001",
    ]


def test_all_seeds_of_the_best_are_its_jobs(tmp_path: Path) -> None:
    paths = raced_run(tmp_path / "run")
    found = ranking.read(paths.root, 1)
    assert [trial.jobs for trial in found.shown] == [["hopper-t00002-s0", "hopper-t00002-s1000"]]
