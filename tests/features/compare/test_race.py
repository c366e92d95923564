"""`compare RUN --jobs A,B --race`: further seeds of two jobs, until it is decided which is better.

The supervisor is the real one; its workers train nothing, and give the values of a table.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
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
from orchestrator.core.errors import LedgerError, Problem, RunInterrupted, UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.local import LocalExecutor
from orchestrator.experiment import session
from orchestrator.experiment.begun_source import BegunSource, Direction
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.from_outside import control
from orchestrator.features.compare import chosen_jobs, contestants, race_round
from orchestrator.features.compare.contestants import Conditions
from orchestrator.features.compare.race_notes import BUDGETS, FRESH, RESULTS
from orchestrator.features.compare.race_result import RaceResult
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob
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


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    command = worker_command(tmp_path)
    commands.examine_nothing(monkeypatch)
    monkeypatch.setattr(
        "orchestrator.executors.local_backend.LocalExecutor",
        lambda: LocalExecutor(worker_command=command),
    )
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
    assert found.difference.interval is not None
    assert found.difference.interval.low > 0
    assert found.difference.interval.method == "repeated Welch's t"
    assert found.p is not None
    assert found.p < 0.05
    recorded = json.loads((found.race_dir / RESULTS).read_text())
    assert recorded == {"distance_m": json.loads(json.dumps(found.facts()))}
    (found.race_dir / RESULTS).unlink()
    (found.race_dir / RESULTS).mkdir()
    again = world.race()
    assert again == replace(found, remarks=again.remarks)
    (remark,) = again.remarks
    assert "race-results.json cannot be written" in remark
    further = found.seeds[1:]
    expected = {f"{name}-s{seed}" for name in ("parent", "child") for seed in further}
    assert set(world.trained(found.race_dir)) == expected
    assert found.trained == len(expected)
    assert found.race_dir == world.folder / "run-race-child-parent"


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


@pytest.mark.nightly
def test_the_same_call_finds_the_same_and_trains_nothing(world: World) -> None:
    world.train({"parent": [0], "child": [0]})
    found = world.race()
    before = world.trained()
    assert world.race() == found
    assert world.race("child", "parent").outcome == "lower"
    assert world.race("parent-s0", "child-s0") == found
    assert world.trained() == before


def test_seeds_that_are_there_may_decide_it_already(world: World) -> None:
    world.train({"parent": range(6), "child": range(6)})
    found = world.race()
    assert found.outcome == "higher"
    assert len(found.seeds) == 6
    assert found.trained == 0
    assert not found.race_dir.exists()


@pytest.mark.nightly
def test_seeds_that_one_of_both_lacks_are_trained_first(world: World) -> None:
    world.train({"parent": [3, 4, 5, 6], "twin": [4]})
    found = world.race("parent", "twin", most_seeds=4)
    assert found.outcome == "not decided"
    assert found.seeds == [3, 4, 5, 6]
    raced = world.trained(found.race_dir)
    assert set(raced) == {"twin-s3", "twin-s5", "twin-s6"}


def test_a_spent_budget_ends_it_with_the_interval_and_a_larger_one_goes_on(world: World) -> None:
    world.train({"parent": [0, 1], "twin": [0, 1]})
    found = world.race("parent", "twin", most_seeds=4)
    assert found.outcome == "not decided"
    assert len(found.seeds) == 4
    assert found.difference.interval is not None
    assert found.difference.interval.low < 0 < found.difference.interval.high
    (spent,) = found.remarks
    assert spent.startswith("The budget of 4 seeds is spent. With smallest_difference")
    assert str(found) == f"{found.sentence}\n{spent}"
    more = world.race("parent", "twin", most_seeds=6)
    assert more.outcome == "not decided"
    assert len(more.seeds) == 6
    remark, _ = more.remarks
    assert "raised (4, then 6 seeds)" in remark
    assert "10%" in remark
    assert world.race("parent", "twin", most_seeds=5).remarks[0] == remark


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


def test_what_is_found_by_another_figure_without_a_training_is_a_declaration_too(
    world: World,
) -> None:
    world.train({"parent": [0, 1], "twin": [0, 1]})
    assert world.race("parent", "twin", most_seeds=6).outcome == "not decided"
    trained = world.trained(world.folder / "run-race-parent-twin")
    by = {"by": "eval_mean", "smallest_difference": 1e-6}
    remarks = world.race("parent", "twin", **by, most_seeds=5).remarks
    assert remarks == ["The budget of 5 seeds is spent."]
    assert world.trained(world.folder / "run-race-parent-twin") == trained
    remark, _ = world.race("parent", "twin", **by, most_seeds=6).remarks
    assert "raised (5, then 6 seeds)" in remark


def test_a_smaller_budget_later_is_none_that_was_raised(world: World) -> None:
    world.train({"parent": [0, 1], "twin": [0, 1]})
    assert len(world.race("parent", "twin", most_seeds=4).seeds) == 4
    less = world.race("parent", "twin", most_seeds=3)
    assert less.outcome == "not decided"
    assert not any("raised" in remark for remark in less.remarks)


@pytest.mark.nightly
def test_none_above_a_declared_difference_is_a_decision(world: World) -> None:
    world.train({"parent": [0, 1], "twin": [0, 1]})
    found = world.race("parent", "twin", smallest_difference=1.0)
    assert found.outcome == "no difference"
    assert len(found.seeds) < 6


@pytest.mark.nightly
def test_a_seed_that_fails_for_one_is_left_out_for_both(world: World) -> None:
    world.say(child=[*CHILD[:2], None, *CHILD[3:]])
    world.train({"parent": [0, 1], "child": [0, 1]})
    found = world.race(most_seeds=5, smallest_difference=0.01)
    assert 2 not in found.seeds
    assert "seed 2 left out for both" in found.remarks[0]


def test_a_body_that_fails_with_every_seed_is_not_trained_for_ever(world: World) -> None:
    world.say(child=[None] * 20, parent=[1.0, 1.1] * 10)
    world.train({"parent": [0], "child": [0]})
    with pytest.raises(UsageError, match=r"child has no value of distance_m .* last 3 seeds"):
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
    assert found.remarks[0].startswith("The search maximizes eval_mean - distance_m: that is")
    assert found.remarks[1].startswith(
        "Only seeds that were trained for the race count: the search"
    )


@pytest.mark.nightly
def test_fresh_seeds_are_those_that_the_run_directory_has_not(world: World) -> None:
    world.train({"parent": [0], "child": [0, 1, 2]})
    found = world.race(fresh_seeds=True)
    assert min(found.seeds) == 3
    assert found.outcome == "higher"


def test_fresh_seeds_that_the_run_directory_gets_later_go_on_to_count(world: World) -> None:
    """As where a search goes on, and trains another body with them."""
    world.train({"parent": [0], "child": [0]})
    before = world.race(fresh_seeds=True)
    trained = world.trained()
    world.train({"parent": [0], "child": [0], "twin": [0, 1, 2]})
    assert world.race(fresh_seeds=True) == before
    assert world.trained() == trained
    (world.folder / "run-race-child-parent" / FRESH).unlink()
    older = world.race(fresh_seeds=True)
    assert min(older.seeds) == 3, "one that has noted none counts those that RUN has not"


def test_fresh_seeds_are_none_of_another_job_which_may_be_of_the_same_body(world: World) -> None:
    """As where a search has trained its best again, under another name."""
    world.train({"parent": [0], "child": [0], "twin": [0, 1, 2, 3]})
    found = world.race(fresh_seeds=True, most_seeds=3)
    assert found.seeds == [4, 5, 6]


@pytest.mark.nightly
def test_fresh_seeds_are_none_that_an_earlier_race_has_trained_for_one_of_both(
    world: World,
) -> None:
    world.train({"parent": [0], "child": [0, 1, 2]})
    assert world.race(most_seeds=3).seeds == [0, 1, 2]
    before = set(world.trained())
    assert before == {"parent-s1", "parent-s2"}
    assert world.race(fresh_seeds=True, most_seeds=3).seeds == [3, 4, 5]
    new = {f"{name}-s{seed}" for name in ("parent", "child") for seed in (3, 4, 5)}
    assert set(world.trained()) - before == new


@pytest.mark.nightly
def test_it_is_compared_by_the_return_where_no_figure_is_named(world: World) -> None:
    world.train({"parent": range(6), "child": range(6)})
    found = world.race(by=None)
    assert found.by == "eval_mean"
    assert found.jobs[0].mean == pytest.approx(10 * sum(PARENT[:6]) / 6)


def test_settings_that_differ_are_said_and_of_returns_those_that_may_be_paid_otherwise(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.train(
        {"parent": range(6), "child": range(6)},
        child={"ppo": {"gamma": 0.9}, "env_kwargs": {"deed": "nothing", "at": 41}},
    )
    found = world.race(by=None, show=True)
    assert [(one.what, one.b) for one in found.settings] == [
        ("ppo.gamma", "0.9"),
        ("env_kwargs.at", "41"),
    ]
    (remark,) = found.remarks
    assert "eval_mean is a return, and what earns it may differ with env_kwargs.at:" in remark
    assert f"warning: {remark}" in capsys.readouterr().out
    assert json.loads(json.dumps(found.facts()))["settings"][1]["b"] == "41"
    assert world.race().remarks == []


@pytest.mark.nightly
def test_seeds_with_other_settings_are_left_out(world: World) -> None:
    world.train({"parent": [0, 1], "child": [0, 1]})
    ledger = Ledger.open(RunPaths(world.run_dir).ledger)
    row = ledger.job_row("child-s1")
    assert row is not None
    ledger.update_spec(row.job.with_spec(n_envs=4))
    ledger.commit()
    ledger.close()
    found = world.race(most_seeds=4)
    assert "child: seed 1 trained with other settings, and left out." in found.remarks
    assert "child-s1" in world.trained()


def test_a_run_directory_of_other_jobs_in_its_place_is_refused(world: World) -> None:
    world.train({"parent": [0], "child": [0]})
    run_dir = world.run_dir
    world.say(stranger=PARENT)
    world.run_dir = run_dir.with_name("run-race-child-parent")
    world.train({"stranger": [0]})
    world.run_dir = run_dir
    with pytest.raises(UsageError, match=r"has other jobs, such as stranger-s0"):
        world.race(most_seeds=3)


def test_a_race_that_was_killed_before_it_had_jobs_goes_on(world: World) -> None:
    world.train({"parent": [0], "child": [0]})
    race_dir = world.folder / "run-race-child-parent"
    race_dir.mkdir()
    RunPaths(race_dir).lock.touch()
    assert world.race(most_seeds=3).race_dir == race_dir
    assert world.trained()


def test_a_body_that_was_refused_cannot_be_raced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(jobs: Any, **_: Any) -> dict[str, JobVerdict]:
        problem = Problem(where="jobs", message="has no legs")
        verdicts = {"child": JobVerdict(problem=problem)}
        return {job.job_id: verdicts.get(job.spec.name, JobVerdict()) for job in jobs}

    monkeypatch.setattr("orchestrator.experiment.examination.preflight.examine", examine)
    world.train({"parent": [0], "child": [0]})
    with pytest.raises(UsageError, match=r"child: is invalid, .* trained: .*has no legs"):
        world.race(most_seeds=3)


@pytest.mark.nightly
def test_what_is_declared_otherwise_by_now_is_not_mixed_with_what_was_raced(world: World) -> None:
    world.train({"parent": [0], "child": [0]})
    world.race(most_seeds=3)
    shutil.rmtree(world.run_dir)
    world.train({"parent": [0], "child": [0]}, child={"n_envs": 4})
    with pytest.raises(UsageError, match="child was raced as it was declared before"):
        world.race(most_seeds=4)


REFUSED: Sequence[tuple[Sequence[str], Mapping[str, Any], str]] = [
    (("parent", "parent"), {}, "parent is named twice"),
    (("parent", "parent-s0"), {}, "parent is named twice"),
    (("parent",), {}, "a race is between two jobs, found 1"),
    (("parent", "child", "twin"), {}, "a race is between two jobs, found 3"),
    (("parent", "chlid"), {}, "chlid is no job, .* did you mean child"),
    (("parent", "*"), {}, r"a race is between two jobs, and \* means .*; name one"),
    (
        ("parent", "child"),
        {"by": "distance"},
        "no job has distance; did you mean dist",
    ),
    (
        ("parent", "child"),
        {"most_seeds": 2},
        "most_seeds: expected a whole number from 3 to 200",
    ),
    (
        ("parent", "unevaluated"),
        {"by": "env_steps / distance_m"},
        r"unevaluated is not evaluated \(eval_episodes = 0\), so it has no env_steps / distance_m",
    ),
    (("parent", "child"), {"smallest_difference": 0}, "expected a number above 0"),
    (("parent", "child"), {"smallest_difference": float("nan")}, "expected a number above 0"),
    (("parent", "child"), {"max_parallel": 0}, "max_parallel=0"),
    (("parent", "long"), {}, r"same total_timesteps, .*\(parent: 512; long: 1,024\)"),
    (("parent", "other"), {}, r"same task, .*\(parent: odd:make; other: odd:unhurried\)"),
    (("parent", "unevaluated"), {}, r"unevaluated is not evaluated \(eval_episodes = 0\)"),
]


def test_what_cannot_be_raced_is_refused(world: World) -> None:
    names = ("parent", "child", "twin", "long", "other", "unevaluated", "nanny")
    world.say(**dict.fromkeys(names, PARENT))
    world.train(
        {name: [0] for name in names},
        long={"total_timesteps": 1024},
        other={"entry_point": "odd:unhurried", "env_kwargs": {}},
        unevaluated={"eval_episodes": 0},
    )
    for jobs, options, said in REFUSED:
        with pytest.raises(UsageError, match=said):
            orchestrator.compare(
                world.run_dir, jobs, **{"by": "distance_m", "race": True, **options}
            )
    assert [path.name for path in world.folder.glob("run-race*")] == []


def test_a_figure_that_one_of_them_never_has_is_refused_before_a_round(world: World) -> None:
    world.train({"parent": [0, 1, 2], "child": [0, 1]})
    by = "distance_m / (env_steps - env_steps)"
    said = r"parent: none of its 3 jobs \(SUCCEEDED\) has a value of .* race them by another figure"
    with pytest.raises(UsageError, match=said):
        world.race("child", "parent", by=by)
    assert list(world.folder.glob("run-race*")) == []


def test_options_of_a_race_are_refused_without_one(world: World) -> None:
    with pytest.raises(UsageError, match="most_seeds is for a race: add race=True"):
        orchestrator.compare(world.run_dir, ["a", "b"], most_seeds=5)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="smallest_difference is for a race"):
        orchestrator.compare(world.run_dir, ["a", "b"], smallest_difference=0)  # type: ignore[call-overload]


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
        with pytest.raises(
            UsageError, match=r"child starts from the policy of job:origin-s0: .*from_nothing=True"
        ):
            world.race()
        found = world.race(from_nothing=True)
        assert found.outcome == "higher"
        assert found.settings == []
        raced = world.trained()
        assert "child-s0" in raced
        assert "parent-s0" not in raced
        assert '"init": null' in (found.race_dir / "jobs/child-s0/spec.json").read_text()

    @pytest.mark.nightly
    def test_the_same_start_is_that_of_the_further_seeds(self, world: World) -> None:
        self.with_starts(world, parent=["aa"], child=["aa"])
        found = world.race()
        job = RunPaths(found.race_dir).job("child-s1")
        assert job.init.read_bytes() == b"policy"
        assert '"init_sha256": "aa"' in job.spec.read_text()

    def test_a_start_of_each_seed_has_no_further_seeds(self, world: World) -> None:
        self.with_starts(world, parent=["aa", "bb"], child=["aa", "bb"])
        with pytest.raises(UsageError, match="each of its seeds started from a policy of its own"):
            world.race()

    def add_unlaunched(self, world: World, like: str, init: str) -> None:
        """A seed that waits for the job whose policy it starts from, which all but it have
        already.
        """
        with contextlib.closing(Ledger.open(RunPaths(world.run_dir).ledger)) as ledger:
            row = ledger.job_row(like)
            assert row is not None
            seed = row.job.spec.seed + 1
            job_id = f"{row.job.spec.name}-s{seed}"
            job = row.job.with_spec(job_id=job_id, seed=seed, init=init, init_sha256=None)
            ledger.put_jobs([DeclaredJob(position=9, job=replace(job, job_id=job_id))])
            ledger.commit()

    def test_a_seed_that_was_never_launched_starts_from_the_policy_of_the_others(
        self, world: World
    ) -> None:
        self.with_starts(world, parent=["aa", "aa", "aa"], child=["aa", "aa"])
        self.add_unlaunched(world, "child-s1", init=self.ORIGIN)
        with pytest.raises(
            UsageError, match=r"child: 1 seed is not trained to the end \(PENDING\)"
        ):
            world.race()
        control.stop(world.run_dir, ["child-s2"])
        found = world.race(most_seeds=3)
        assert found.seeds == [0, 1, 2]
        assert not any("other settings" in remark for remark in found.remarks)

    def test_a_seed_that_waits_for_a_policy_of_its_own_has_no_further_seeds(
        self, world: World
    ) -> None:
        self.with_starts(world, parent=["aa"], child=["aa"])
        self.add_unlaunched(world, "child-s0", init="job:origin-s1")
        with pytest.raises(UsageError, match="each of its seeds started from a policy of its own"):
            world.race()

    def test_a_seed_that_starts_from_nothing_is_one_with_other_settings(self, world: World) -> None:
        self.with_starts(world, parent=["aa", "aa", "aa"], child=["aa", "aa", ""])
        found = world.race(most_seeds=3)
        assert "child: seed 2 trained with other settings, and left out." in found.remarks


@contextlib.contextmanager
def begun(world: World, *options: str, at_end: str = "pass") -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which is ended with the block.

    :param at_end: what the process runs before it exits.
    """
    patched = f"""
import os, signal, sys
from orchestrator import __main__
from orchestrator.executors import local, local_backend
worker = {worker_command(world.folder)!r}
local_backend.LocalExecutor = lambda: local.LocalExecutor(worker_command=worker)
try:
    __main__.main()
finally:
    {at_end}
"""
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


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_what_was_trained_stays_and_the_same_command_goes_on(
    world: World, number: signal.Signals
) -> None:
    world.say(parent=[*PARENT[:4], "waits", *PARENT[5:]], child=[*CHILD[:4], 2.9, *CHILD[5:]])
    world.train({"parent": [0], "child": [0]})
    again = f"os.kill(os.getpid(), {int(number)})"  # an impatient second Ctrl-C
    with begun(world, "--smallest-difference", "0.001", at_end=again) as process:
        wait_until(
            lambda: runs(world, "parent-s4") or process.poll() is not None,
            "seed 4",
            LONG_PATIENCE_S,
        )
        if process.poll() is None:
            os.kill(process.pid, number)
        _, errors = process.communicate(timeout=LONG_PATIENCE_S)
    assert "Traceback" not in errors
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped; run the same command again to go on" in errors
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


def test_a_signal_that_comes_when_a_round_has_ended_stops_the_race(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.train({"parent": [0], "child": [0]})
    real = session.run
    monkeypatch.setattr(
        session, "run", lambda *args, **more: replace(real(*args, **more), signalled=True)
    )
    with pytest.raises(RunInterrupted, match="the race has stopped"):
        world.race()
    assert set(world.trained().values()) == {"SUCCEEDED"}


def test_a_budget_is_recorded_before_its_first_training(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.train({"parent": [0], "child": [0]})
    recorded = []

    def launch(self: LocalExecutor, *_: object) -> None:
        file = world.folder / "run-race-child-parent" / BUDGETS
        recorded.append(json.loads(file.read_text()) if file.exists() else None)
        raise OSError("no process can be started")

    monkeypatch.setattr(LocalExecutor, "submit", launch)
    with pytest.raises(UsageError, match="has no value of distance_m"):
        world.race(most_seeds=7)
    assert recorded[0] == {"distance_m": [7]}


def test_the_command_that_is_named_cancels_the_seeds_that_a_race_would_wait_for(
    world: World,
) -> None:
    world.train({"parent": [0, 1, 2], "child": [0]})
    with contextlib.closing(Ledger.open(RunPaths(world.run_dir).ledger)) as ledger:
        row = ledger.job_row("child-s0")
        assert row is not None
        for seed in (1, 2):
            job_id = f"child-s{seed}"
            job = replace(row.job.with_spec(job_id=job_id, seed=seed), job_id=job_id)
            ledger.put_jobs([DeclaredJob(position=8 + seed, job=job)])
        ledger.commit()
    with pytest.raises(UsageError) as refused:
        world.race(most_seeds=3)
    (command,) = re.findall("cancel them: `(.*)`;", str(refused.value))
    assert command == f"orchestrator stop {shlex.quote(str(world.run_dir))} child-s1 child-s2"
    commands.succeed(*shlex.split(command)[1:], cwd=world.folder)
    assert world.race(most_seeds=3).seeds == [0, 1, 2]


@pytest.mark.parametrize(
    ("cores", "max_parallel", "seeds"),
    [(4, 8, 4), (4, None, 4), (4, 4, 2), (16, 8, 1), (64, None, 1), (1, "idle", 4)],
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
    first = replace(field.first, template=replace(field.first.template, declared=larger))
    monkeypatch.setattr(topology, "detect", lambda: machine_with(32))
    assert race_round.seeds_a_round(replace(field, first=first), max_parallel) == seeds


@pytest.mark.nightly
def test_a_run_that_still_trains_these_jobs_is_waited_for(world: World) -> None:
    world.train({"parent": [0], "child": [0]})
    ledger = Ledger.open(RunPaths(world.run_dir).ledger)
    row = ledger.job_row("child-s0")
    assert row is not None
    job = row.job.with_spec(job_id="child-s1", seed=1)
    ledger.put_jobs([DeclaredJob(position=9, job=replace(job, job_id="child-s1"))])
    ledger.commit()
    ledger.close()
    with pytest.raises(UsageError, match=r"child: 1 seed is not trained to the end \(PENDING\)"):
        world.race()
    assert world.race(fresh_seeds=True).outcome == "higher"


class TestCommand:
    def test_it_says_who_is_better_by_how_much_and_after_how_many_seeds(self, world: World) -> None:
        world.train({"parent": range(6), "child": range(6)})
        arguments = ("compare", "run", "--jobs", "parent,child", "--by", "distance_m", "--race")
        shown = commands.succeed(*arguments, cwd=world.folder).stdout
        assert "child is higher than parent by 1.07 [" in shown
        assert re.search(r"\(repeated Welch's t\), p = 0\.00\d+, decided after 6 seeds each", shown)

    def test_it_says_that_nothing_is_decided_and_what_could_be(self, world: World) -> None:
        world.train({"parent": range(5), "twin": range(5)})
        arguments = ("compare", "run", "--jobs", "parent,twin", "--by", "distance_m", "--race")
        shown = commands.succeed(*arguments, "--most-seeds", "5", cwd=world.folder).stdout
        assert "Not decided after 5 seeds each: twin is" in shown
        assert "With --smallest-difference" in shown
        limit = ("--smallest-difference", "0.9")
        shown = commands.succeed(*arguments, *limit, cwd=world.folder).stdout
        assert "No difference above 0.90, decided after 5 seeds each: twin is" in shown

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--race"], "--race is between two jobs of one run directory: add --jobs A,B"),
            (["--jobs", "a,b", "--most-seeds", "5"], "--most-seeds is for a race: add --race"),
            (["--jobs", "a,b", "--fresh-seeds"], "--fresh-seeds is for a race: add --race"),
            (["--jobs", "a,b", "--race", "--max-parallel", "x"], "--max-parallel x: expected"),
            (["--jobs", "a,b", "--race", "--output", "x.html"], "do not go together"),
        ],
    )
    def test_options_that_do_not_fit_are_refused(
        self, tmp_path: Path, arguments: list[str], said: str
    ) -> None:
        refused = commands.invoke("compare", "run", *arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert said in refused.stderr
