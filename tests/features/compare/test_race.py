"""`compare RUN --jobs A,B --race`: further seeds of two jobs, until it is decided which is better.

The supervisor is the real one; its workers train nothing, and give the values of a table.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import command_helpers as commands
import pytest
from command_helpers import LONG_PATIENCE_S, odd, wait_until, write_experiment
from measurement_helpers import machine_with

import orchestrator
from orchestrator.core.errors import LedgerError, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.experiment import run_directory
from orchestrator.experiment.begun_source import BegunSource, Direction
from orchestrator.features.compare import chosen_jobs, contestants, race_round
from orchestrator.features.compare.contestants import Conditions
from orchestrator.features.compare.race_notes import BUDGETS, RESULTS
from orchestrator.features.compare.race_result import RaceResult
from orchestrator.ledger import Ledger
from orchestrator.machine import topology

VALUES = "values.json"
T = TypeVar("T")
PARENT = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 0.8, 1.05, 0.95, 1.15]
CHILD = [2.0, 2.4, 1.9, 2.2, 2.1, 2.3, 1.8, 2.05, 1.95, 2.15]
TWIN = [1.1, 1.0, 1.2, 0.9, 1.3, 1.0, 0.95, 0.8, 1.15, 1.05]

WORKER = """
import json, pathlib, re, sys, time
table = json.loads(pathlib.Path(sys.argv[1]).read_text())
job = pathlib.Path(sys.argv[2])
number = sys.argv[3]
spec = json.loads((job / "spec.json").read_text())
value = table[spec["name"]][spec["seed"]]
if value == "waits":
    time.sleep(600)
(job / "model.zip").touch()
(job / "vecnormalize.pkl").touch()
record = {"code": 1, "message": "ValueError: the knee fell off", "env_steps": 1}
if value is not None:
    measures = {"distance_m": value}
    record = {"code": 0, "message": "", "env_steps": spec["total_timesteps"], "ep_rew_mean": 1.0}
    record |= {"eval_mean": 10 * value, "measures": measures}
(job / "attempts" / number / "exit.json").write_text(json.dumps(record))
sys.exit(record["code"])
"""
DEFAULTS = commands.TINY.replace("eval_episodes = 0", "eval_episodes = 1")


class World:
    """A folder with a job file whose trainings have the values of a table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.values: dict[str, list[Any]] = {}

    def say(self, **values: Sequence[Any]) -> None:
        """Name of a job → what its training gives, for each seed: a value; None: it fails; or
        ``"waits"``."""
        self.values |= {name: list(of_seeds) for name, of_seeds in values.items()}
        (self.folder / VALUES).write_text(json.dumps(self.values))

    def train(self, seeds: Mapping[str, Sequence[int]], **more: Mapping[str, Any]) -> None:
        """Run a job file with these seeds of each job. :param more: further keys of a job."""
        jobs = [
            odd(name, "nothing", seeds=list(of_job), retry={"max_retries": 0}, **more.get(name, {}))
            for name, of_job in seeds.items()
        ]
        file = write_experiment(self.folder, *jobs, defaults=DEFAULTS)
        orchestrator.run(file, run_dir=self.run_dir, skip_invalid=True)

    def race(self, *jobs: str, by: str | None = "distance_m", **options: Any) -> RaceResult:
        return orchestrator.compare(
            self.run_dir, jobs or ("parent", "child"), by, race=True, max_parallel=2, **options
        )

    def trained(self, race_dir: Path | None = None) -> dict[str, str]:
        """The jobs of the race's directory: id → state."""
        paths = RunPaths(race_dir or self.folder / "run-race-child-parent")
        with run_directory.opened_ledger(paths, read_only=True) as ledger:
            return {row.job_id: row.state.name for row in ledger.jobs()}


def worker_command(folder: Path) -> tuple[str, ...]:
    program = folder / "worker.py"
    program.write_text(WORKER)
    return (sys.executable, "-I", "-S", str(program), str(folder / VALUES))


def with_table(folder: Path) -> str:
    """Code for the process of a supervisor: its workers give the values of the table."""
    return f"""
from orchestrator.executors import local, processes
command = {worker_command(folder)!r}
local.Processes = lambda: processes.Processes(worker_command=command)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    commands.examine_nothing(monkeypatch)
    commands.add_to_server(monkeypatch, with_table(tmp_path))
    made = World(tmp_path)
    made.say(parent=PARENT, child=CHILD, twin=TWIN)
    return made


def test_further_seeds_are_trained_of_both_until_it_is_decided(world: World) -> None:
    world.train({"parent": [0], "child": [0]})
    found = world.race()
    assert found.outcome == "higher"
    assert list(found.seeds) == list(range(len(found.seeds)))
    assert 3 <= len(found.seeds) < 10
    assert found.jobs[0].values == PARENT[: len(found.seeds)]
    assert found.jobs[1].values == CHILD[: len(found.seeds)]
    assert found.difference.low is not None
    assert found.difference.low > 0
    assert found.p is not None
    assert found.p < 0.05
    recorded = json.loads((found.race_dir / RESULTS).read_text())
    assert recorded == {"distance_m": json.loads(json.dumps(found.facts()))}
    assert world.race() == found, "it is decided"
    further = found.seeds[1:]
    expected = {f"{name}-s{seed}" for name in ("parent", "child") for seed in further}
    assert set(world.trained(found.race_dir)) == expected
    assert found.trained == len(expected)
    assert found.race_dir == world.folder / "run-race-child-parent"


@pytest.mark.nightly
def test_a_seed_is_trained_as_the_job_file_would_train_it(world: World) -> None:
    world.train({"parent": [0, 1], "child": [0, 1]}, child={"n_envs": 4, "ppo": {"gamma": 0.9}})
    raced = world.race(most_seeds=3)
    shutil.rmtree(world.run_dir)
    world.train({"parent": [2], "child": [2]}, child={"n_envs": 4, "ppo": {"gamma": 0.9}})
    for job_id in ("parent-s2", "child-s2"):
        declared = WorkerSpec.from_json(RunPaths(world.run_dir).job(job_id).spec.read_bytes())
        trained = WorkerSpec.from_json(RunPaths(raced.race_dir).job(job_id).spec.read_bytes())
        assert trained.fingerprint() == declared.fingerprint()
        assert replace(trained, preview=declared.preview) == declared


def test_seeds_that_are_there_may_decide_it_already(world: World) -> None:
    world.train({"parent": range(6), "child": range(6)})
    found = world.race()
    assert found.outcome == "higher"
    assert len(found.seeds) == 6
    assert found.trained == 0
    assert not found.race_dir.exists()


@pytest.mark.nightly
def test_a_spent_budget_ends_it_with_the_interval_and_a_larger_one_goes_on(world: World) -> None:
    world.train({"parent": [0, 1], "twin": [0, 1]})
    found = world.race("parent", "twin", most_seeds=4)
    assert found.outcome == "not decided"
    assert len(found.seeds) == 4
    assert found.difference.low is not None
    assert found.difference.high is not None
    assert found.difference.low < 0 < found.difference.high
    more = world.race("parent", "twin", most_seeds=6)
    assert more.outcome == "not decided"
    assert len(more.seeds) == 6
    assert any("4, then 6 seeds" in remark for remark in more.remarks), "the error is larger"


@pytest.mark.nightly
def test_a_decision_stands_when_a_larger_budget_is_declared(world: World) -> None:
    """By the wider bounds of the larger one it would be open again."""
    world.say(child=[1.5, 1.7, 1.4, 1.6, 1.5, 1.8, 1.3, 1.55, 1.45, 1.65])
    world.train({"parent": [0, 1], "child": [0, 1]})
    found = world.race(most_seeds=8)
    assert found.outcome == "higher"
    trained = world.trained()
    again = world.race(most_seeds=200)
    assert (again.outcome, again.seeds, again.p) == (found.outcome, found.seeds, found.p)
    assert (again.most_seeds, again.remarks) == (8, found.remarks)
    assert world.trained() == trained
    recorded = json.loads((found.race_dir / BUDGETS).read_text())
    assert recorded == {"distance_m": [8]}


@pytest.mark.nightly
def test_a_seed_that_fails_for_one_is_left_out_for_both(world: World) -> None:
    world.say(child=[*CHILD[:2], None, *CHILD[3:]])
    world.train({"parent": [0, 1], "child": [0, 1]})
    found = world.race(most_seeds=5, smallest_difference=0.01)
    assert 2 not in found.seeds


def test_a_body_that_fails_with_every_seed_is_not_trained_for_ever(world: World) -> None:
    world.say(child=[None] * 20, parent=[1.0, 1.1] * 10)
    world.train({"parent": [0], "child": [0]})
    with pytest.raises(UsageError, match="child"):
        world.race()
    assert len(world.trained()) <= 6


@pytest.mark.nightly
def test_jobs_of_a_search_are_compared_by_fresh_seeds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.train({"parent": range(6), "child": [0]})

    class Search(BegunSource):
        noun = "search"
        makes_jobs = True
        objectives: ClassVar[Mapping[str, Direction]] = {"eval_mean - distance_m": "maximize"}

    monkeypatch.setattr(chosen_jobs, "begun_source", lambda *_: Search())
    world.say(parent=[9.0] * 6 + PARENT, child=[9.0] * 6 + CHILD)
    found = world.race(by=None)
    assert min(found.seeds) == 6
    assert found.by == "eval_mean - distance_m"
    assert found.jobs[1].values == pytest.approx([9 * value for value in CHILD[: len(found.seeds)]])
    assert found.outcome == "higher"


@pytest.mark.nightly
def test_fresh_seeds_are_those_that_the_run_directory_has_not(world: World) -> None:
    world.train({"parent": [0], "child": [0, 1, 2]})
    found = world.race(fresh_seeds=True)
    assert min(found.seeds) == 3
    assert found.outcome == "higher"


def test_what_cannot_be_raced_is_refused(world: World) -> None:
    names = ("parent", "child", "long", "other", "unevaluated")
    world.say(**dict.fromkeys(names, PARENT))
    world.train(
        {name: [0] for name in names},
        long={"total_timesteps": 1024},
        other={"entry_point": "odd:unhurried", "env_kwargs": {}},
        unevaluated={"eval_episodes": 0},
    )
    refused: Sequence[tuple[Sequence[str], Mapping[str, Any]]] = [
        (("parent", "parent"), {}),
        (("parent", "child", "long"), {}),
        (("parent", "chlid"), {}),
        (("parent", "child"), {"by": "distance"}),
        (("parent", "child"), {"most_seeds": 2}),
        (("parent", "child"), {"smallest_difference": 0}),
        (("parent", "long"), {}),
        (("parent", "other"), {}),
        (("parent", "unevaluated"), {}),
    ]
    for jobs, options in refused:
        with pytest.raises(UsageError):
            world.race(*jobs, **options)
    assert [path.name for path in world.folder.glob("run-race*")] == []


class TestStarts:
    """Jobs that begin with a trained policy."""

    ORIGIN = "job:origin-s0"

    def with_starts(self, world: World, **starts: Sequence[str]) -> None:
        """Name → SHA-256 of the policy that each of its seeds started from."""
        world.train({name: range(len(of_job)) for name, of_job in starts.items()})
        paths = RunPaths(world.run_dir)
        ledger = Ledger.open(paths.ledger)
        for name, of_job in starts.items():
            for seed, sha256 in enumerate(of_job):
                row = ledger.job_row(f"{name}-s{seed}")
                assert row is not None
                if sha256:
                    ledger.update_spec(row.job.with_spec(init=self.ORIGIN, init_sha256=sha256))
                    paths.job(row.job_id).init.write_bytes(b"policy")
        ledger.commit()
        ledger.close()

    def test_other_starts_are_refused_and_both_can_begin_with_nothing(self, world: World) -> None:
        self.with_starts(world, parent=["", ""], child=["aa", "aa"])
        with pytest.raises(UsageError, match="job:origin-s0"):
            world.race()
        found = world.race(from_nothing=True)
        assert found.outcome == "higher"
        assert found.settings == []
        raced = world.trained()
        assert "child-s0" in raced
        assert "parent-s0" not in raced
        assert '"init": null' in (found.race_dir / "jobs/child-s0/spec.json").read_text()


@contextlib.contextmanager
def begun(world: World, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which is ended with the block."""
    patched = commands.with_server(with_table(world.folder))
    patched += "from orchestrator import __main__\n__main__.main()"
    arguments = ["compare", "run", "--jobs", "parent,child", "--by", "distance_m", "--race"]
    command = [sys.executable, "-c", patched, *arguments, "--max-parallel", "2", *options]
    with commands.start(command, cwd=world.folder, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def runs(world: World, job_id: str) -> bool:
    paths = RunPaths(world.folder / "run-race-child-parent")
    with contextlib.suppress(LedgerError):  # there is none yet
        return paths.ledger.exists() and world.trained().get(job_id) == "RUNNING"
    return False


@pytest.mark.nightly
def test_what_was_trained_stays_and_the_same_command_goes_on(world: World) -> None:
    world.say(parent=[*PARENT[:4], "waits", *PARENT[5:]], child=[*CHILD[:4], 2.9, *CHILD[5:]])
    world.train({"parent": [0], "child": [0]})
    with begun(world, "--smallest-difference", "0.001") as process:
        wait_until(
            lambda: runs(world, "parent-s4") or process.poll() is not None,
            "seed 4",
            LONG_PATIENCE_S,
        )
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LONG_PATIENCE_S)
    before = world.trained()
    assert before["parent-s1"] == "SUCCEEDED"
    recorded = json.loads((world.folder / "run-race-child-parent" / BUDGETS).read_text())
    assert recorded == {"distance_m": [30]}
    world.say(parent=PARENT)
    with begun(world, "--json") as process:
        out, errors = process.communicate(timeout=LONG_PATIENCE_S)
    assert process.returncode == 0, errors
    found = json.loads(out)
    assert found["outcome"] == "higher"
    assert set(before) <= set(world.trained())
    attempts = RunPaths(world.folder / found["race_dir"]).job("parent-s1").attempts
    assert [path.name for path in attempts.iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("cores", "max_parallel", "seeds"),
    [(4, 8, 4), (4, None, 4), (64, None, 1)],
)
def test_a_round_has_as_many_seeds_of_both_as_train_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, cores: int, max_parallel: Any, seeds: int
) -> None:
    """On 32 cores; ``max_parallel`` counts jobs."""
    world.train({"parent": [0], "child": [0]})
    conditions = Conditions(is_fresh=False, from_nothing=False)
    field = contestants.read(world.run_dir, ["parent", "child"], "distance_m", conditions)
    job = field.first.template.job
    larger = replace(job, resources=replace(job.resources, cores=cores))
    first = replace(field.first, template=replace(field.first.template, job=larger))
    monkeypatch.setattr(topology, "detect", lambda: machine_with(32))
    assert race_round.seeds_a_round(replace(field, first=first), max_parallel) == seeds


class TestCommand:
    def test_it_says_who_is_better_by_how_much_and_after_how_many_seeds(self, world: World) -> None:
        world.train({"parent": range(6), "child": range(6)})
        arguments = ("compare", "run", "--jobs", "parent,child", "--by", "distance_m", "--race")
        shown = commands.succeed(*arguments, cwd=world.folder).stdout
        assert "child is higher than parent by 1.07 [" in shown

    @pytest.mark.parametrize("arguments", [["--race"], ["--jobs", "a,b", "--most-seeds", "5"]])
    def test_options_that_do_not_fit_are_refused(
        self, tmp_path: Path, arguments: list[str]
    ) -> None:
        refused = commands.invoke("compare", "run", *arguments, cwd=tmp_path)
        assert refused.returncode == 2
