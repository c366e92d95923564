"""``bench --ranks``: every way is measured with the same work and cores."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import numpy as np
import pytest
from command_helpers import BALANCER, HOPPER, write_experiment
from measurement_helpers import machine_with
from supervisor_helpers import make_spec

from orchestrator.core.errors import UsageError
from orchestrator.features.bench import rank_analysis, rank_benchmark, workload
from orchestrator.features.bench.measurement import Measurement, MeasurementLog
from orchestrator.features.bench.plan import BenchOptions
from orchestrator.jobfile import load
from orchestrator.jobfile.rank_rules import uneven
from orchestrator.machine import topology

pytestmark = pytest.mark.nightly

WORK = {
    "name": "balancer",
    "xml": BALANCER,
    "task": "balance",
    "ppo": {"n_steps": 64, "batch_size": 64},
}
QUICK = ("--repeats", "1", "--seconds", "0.2", "--run-dir", "bench")
two_cpus = pytest.mark.skipif(topology.largest_job(topology.detect()) < 2, reason="needs two CPUs")


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> workload.Work:
    """Of four environments and minibatches of 64."""
    folder = tmp_path_factory.mktemp("work")
    experiment = load(write_experiment(folder, {**WORK, "n_envs": 4}))
    return workload.examine(experiment, workload.pick(experiment, None), folder / "staging")


@two_cpus
def test_every_way_is_measured_once_and_the_command_ends_with_the_verdict(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {**WORK, "resources": {"ranks": 2}})
    done = commands.give("bench", jobs, *QUICK, "--ranks", "1,2,1024", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1024 ranks are left out: they ask for 1,024 cores" in done.stderr
    records = MeasurementLog(tmp_path / "bench/bench/ranks.jsonl").read()
    assert {(record["arm"], record["level"]) for record in records} == {
        ("allreduce", 1),
        *((way, 2) for way in rank_benchmark.WAYS),
    }
    assert len(records) == 5
    for record in records:
        assert record["status"] in ("ok", "cut"), record["message"]
        assert {process["learner"] for process in record["processes"]} == {
            "sb3" if record["arm"] == "subproc" else "fast"
        }
        if record["arm"] == "subproc":
            assert len(record["processes"][0]["cpus"]) == 2, "no more than two ranks have"
        together = record["arm"] in rank_benchmark.ONE_JOB_WAYS and record["level"] > 1
        assert [process["allreduce_s"] > 0 for process in record["processes"]] == [together] * len(
            record["processes"]
        )
    assert len(next(record for record in records if record["arm"] == "jobs")["processes"]) == 2
    first, *_ = rank_analysis.facts(tmp_path / "bench")["sentences"]
    assert first.startswith("balancer-s0, on 2 cores: ")
    assert first in done.stdout
    again = commands.succeed("bench", jobs, *QUICK, "--ranks", "1,2,1024", cwd=tmp_path)
    assert "5 of 5 measurements are already finished" in again.stderr
    assert commands.invoke("report", "bench", cwd=tmp_path).returncode == 0


def test_the_other_baselines_train_with_one_rank(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {**WORK, "resources": {"ranks": 2}})
    done = commands.succeed(
        "bench", jobs, *QUICK, "--levels", "1", "--arms", "threads", "--no-strong", cwd=tmp_path
    )
    assert "balancer-s0 is measured with one rank instead of resources.ranks = 2" in done.stderr
    (record,) = MeasurementLog(tmp_path / "bench/bench/cells.jsonl").read()
    assert record["throughput"] > 0
    assert record["processes"][0]["allreduce_s"] == 0


@pytest.mark.parametrize("text", ["", "0,2", "two", "1"])
def test_numbers_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        rank_benchmark.numbers(text)


def test_one_rank_is_always_measured() -> None:
    assert rank_benchmark.numbers("4, 2,") == [1, 2, 4]


def test_numbers_that_do_not_suit_machine_or_job_are_left_out_with_the_reason(
    staged: workload.Work,
) -> None:
    kept, reasons = rank_benchmark.fitting_ranks([1, 2, 3, 4, 8], staged, machine_with(4))
    assert kept == [1, 2, 4]
    assert reasons == [
        f"3 ranks are left out: {uneven('n_envs', 4, 3)}.",
        "8 ranks are left out: they ask for 8 cores, and this machine has 4 for jobs.",
    ]
    assert rank_benchmark.fitting_ranks([1, 2], staged, machine_with(1, siblings=2)) == (
        [1, 2],
        ["2 ranks with 1 core each share 1 physical core, or what a CPU quota allows."],
    )
    with pytest.raises(UsageError, match="no number of ranks above 1 can be measured"):
        rank_benchmark.fitting_ranks([1, 2], staged, machine_with(1))


def test_a_plan_has_every_way_at_every_number_and_one_rank_once(
    staged: workload.Work, tmp_path: Path
) -> None:
    experiment = load(write_experiment(tmp_path, WORK))
    options = BenchOptions(run_dir=tmp_path, repeats=2, seconds=1.0)
    document = rank_benchmark.plan_of(experiment, staged, machine_with(2), options, [1, 2], [])
    expected = {("allreduce", 1), *((way, 2) for way in rank_benchmark.WAYS)}
    for repeat in range(2):
        assert {
            (way, number) for way, number, turn in document["order"] if turn == repeat
        } == expected
    assert len(document["order"]) == 10
    small = rank_benchmark.plan_of(
        experiment, staged, machine_with(2, memory_mib=1200), options, [1, 2], []
    )
    assert not any(way == "subproc" for way, *_ in small["order"])
    assert small["notes"] == ["subproc is left out: 5 processes of 400 MiB do not fit into memory."]


def test_ways_differ_in_how_the_same_work_is_started(staged: workload.Work) -> None:
    started = {
        way: rank_benchmark.started_as(Measurement(baseline=way, level=2, repeat=3), staged)
        for way in rank_benchmark.WAYS
    }
    assert {
        way: (alone.baseline, alone.level, alone.repeat) for way, (alone, _) in started.items()
    } == {
        "allreduce": ("pinned", 1, 3),
        "parameter-server": ("pinned", 1, 3),
        "jobs": ("pinned", 2, 3),
        "subproc": ("subproc", 1, 3),
    }
    jobs = {way: todo.job for way, (_, todo) in started.items()}
    assert {way: job.resources.all_cores for way, job in jobs.items()} == {
        **dict.fromkeys(rank_benchmark.WAYS, 2),
        "jobs": 1,
    }
    assert {
        way: job.spec.mode for way, job in jobs.items() if way in rank_benchmark.ONE_JOB_WAYS
    } == {way: way for way in rank_benchmark.ONE_JOB_WAYS}
    assert {(job.spec.n_envs, job.spec.steps_an_iteration) for job in jobs.values()} == {(4, 256)}
    assert all(job.spec.ranks == job.resources.ranks for job in jobs.values())


def test_a_single_environment_gives_the_same_steps_as_in_the_batch(tmp_path: Path) -> None:
    from orchestrator.features.bench.worker.subproc import SingleEnv
    from orchestrator.worker.envs import env_factory

    (tmp_path / "robot").mkdir()
    (tmp_path / "robot/hopper.xml").write_bytes(HOPPER.read_bytes())
    spec = make_spec("a-s5", seed=5, n_envs=3, env=None, xml="robot/hopper.xml", task="forward")
    batch = env_factory.make(spec, tmp_path, n_envs=3, seed=5)
    singles = [SingleEnv(spec, tmp_path, number) for number in range(3)]
    batch.seed(5)
    observations = batch.reset()
    np.testing.assert_array_equal(
        observations, [single.reset(seed=5 + number)[0] for number, single in enumerate(singles)]
    )
    rng, ended = np.random.default_rng(0), 0
    for _ in range(150):
        actions = rng.uniform(-1, 1, (3, *batch.action_space.shape)).astype(np.float32)
        observations, rewards, dones, infos = batch.step(actions)
        for number, single in enumerate(singles):
            observation, reward, terminated, truncated, info = single.step(actions[number])
            assert (reward, terminated or truncated) == (rewards[number], dones[number])
            if dones[number]:
                ended += 1
                np.testing.assert_array_equal(observation, infos[number]["terminal_observation"])
                assert (info["episode"]["r"], truncated) == (
                    infos[number]["episode"]["r"],
                    infos[number]["TimeLimit.truncated"],
                )
                observation, _ = single.reset()
            np.testing.assert_array_equal(observation, observations[number])
    assert ended > 3
