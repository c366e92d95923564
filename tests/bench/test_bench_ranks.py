"""``bench --ranks``: every way measured on the same work and cores, and a sentence that says what it comes to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import command_helpers as commands
import measurement_helpers as bench
import numpy as np
import pytest
from command_helpers import BALANCER, HOPPER, write_experiment
from supervisor_helpers import make_spec

from orchestrator.analysis import contention, job_metrics, samples
from orchestrator.bench import drift, rank_analysis, rank_benchmark, throughput_ratios, workload
from orchestrator.bench.measurement import Measurement, MeasurementLog
from orchestrator.bench.plan import BenchOptions
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import JobPaths
from orchestrator.jobfile import load
from orchestrator.jobfile.distributed_keys import uneven
from orchestrator.machine import topology
from orchestrator.machine.topology import Cpu, Machine

WORK = {"name": "balancer", "xml": BALANCER, "task": "balance", "ppo": {"n_steps": 64, "batch_size": 64}}
QUICK = ("--repeats", "1", "--seconds", "0.2", "--retakes", "0", "--run-dir", "bench")
two_cpus = pytest.mark.skipif(topology.largest_job(topology.detect()) < 2, reason="needs two CPUs")


def cores(count: int, *, siblings: int = 1, memory_mib: int = 64_000) -> Machine:
    cpus = [Cpu(index=index, core=index % count, package=0, numa_node=0) for index in range(count * siblings)]
    return Machine(cpus=tuple(cpus), quota=None, memory_total_mib=memory_mib)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> workload.Work:
    """Of four environments and minibatches of 64."""
    folder = tmp_path_factory.mktemp("work")
    experiment = load(write_experiment(folder, {**WORK, "n_envs": 4}))
    return workload.examine(experiment, workload.pick(experiment, None), folder / "staging")


# -- the command


@two_cpus
def test_every_way_is_measured_once_and_the_end_says_which_is_better(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {**WORK, "resources": {"ranks": 2}})
    done = commands.give("bench", jobs, *QUICK, "--ranks", "1,2,1024", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1024 ranks are left out: they ask for 1,024 cores" in done.stderr
    found = MeasurementLog(tmp_path / "bench/bench/ranks.jsonl").read()
    assert {(one["arm"], one["level"]) for one in found} == {
        ("allreduce", 1),
        *((way, 2) for way in rank_benchmark.WAYS),
    }
    assert len(found) == 5
    for one in found:
        assert one["status"] in ("ok", "disturbed", "cut"), one["message"]
        assert {process["learner"] for process in one["processes"]} == {"sb3" if one["arm"] == "subproc" else "fast"}
        if one["arm"] == "subproc":
            assert len(one["processes"][0]["cpus"]) == 2, "no more than two ranks have"
        together = one["arm"] in rank_benchmark.TOGETHER and one["level"] > 1
        assert [process["allreduce_s"] > 0 for process in one["processes"]] == [together] * len(one["processes"])
    assert len(next(one for one in found if one["arm"] == "jobs")["processes"]) == 2
    first, *_ = rank_analysis.facts(tmp_path / "bench")["sentences"]
    assert first.startswith("balancer-s0, on 2 cores: ")
    assert first in done.stdout
    again = commands.give("bench", jobs, *QUICK, "--ranks", "1,2,1024", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "5 of 5 measurements are already finished" in again.stderr
    assert commands.give("report", "bench", cwd=tmp_path).returncode == 0


def test_the_other_baselines_train_with_one_rank(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, {**WORK, "resources": {"ranks": 2}})
    done = commands.give("bench", jobs, *QUICK, "--levels", "1", "--arms", "threads", "--no-strong", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "balancer-s0 is measured with one rank instead of resources.ranks = 2" in done.stderr
    (one,) = MeasurementLog(tmp_path / "bench/bench/cells.jsonl").read()
    assert one["throughput"] > 0
    assert one["processes"][0]["allreduce_s"] == 0


def test_tune_and_ranks_exclude_each_other(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    done = commands.give("bench", jobs, "--ranks", "2", "--tune", "--run-dir", "bench", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--tune and --ranks" in done.stderr


# -- what is measured


@pytest.mark.parametrize("text", ["", "0,2", "two", "1"])
def test_numbers_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        rank_benchmark.numbers(text)


def test_one_rank_is_always_measured() -> None:
    assert rank_benchmark.numbers("4, 2,") == [1, 2, 4]


def test_numbers_that_do_not_suit_machine_or_job_are_left_out_with_the_reason(staged: workload.Work) -> None:
    kept, said = rank_benchmark.fitting([1, 2, 3, 4, 8], staged, cores(4))
    assert kept == [1, 2, 4]
    assert said == [
        f"3 ranks are left out: {uneven('n_envs = 4', 4, 3)}.",
        "8 ranks are left out: they ask for 8 cores, and this machine has 4 for jobs.",
    ]
    assert rank_benchmark.fitting([1, 2], staged, cores(1, siblings=2)) == (
        [1, 2],
        ["2 ranks with 1 core each share 1 physical core, or what a CPU quota allows."],
    )
    with pytest.raises(UsageError, match="no number of ranks above 1 can be measured"):
        rank_benchmark.fitting([1, 2], staged, cores(1))


def test_a_plan_has_every_way_at_every_number_and_one_rank_once(staged: workload.Work, tmp_path: Path) -> None:
    experiment = load(write_experiment(tmp_path, WORK))
    options = BenchOptions(run_dir=tmp_path, repeats=2, seconds=1.0)
    document = rank_benchmark.plan_of(experiment, staged, cores(2), options, [1, 2], [])
    wanted = {("allreduce", 1), *((way, 2) for way in rank_benchmark.WAYS)}
    for repeat in range(2):
        assert {(way, number) for way, number, turn in document["order"] if turn == repeat} == wanted
    assert len(document["order"]) == 10
    small = rank_benchmark.plan_of(experiment, staged, cores(2, memory_mib=1200), options, [1, 2], [])
    assert not any(way == "subproc" for way, *_ in small["order"])
    assert small["notes"] == ["subproc is left out: 5 processes of 400 MiB do not fit into memory."]


def test_ways_differ_in_how_the_same_work_is_started(staged: workload.Work) -> None:
    found = {
        way: rank_benchmark.started_as(Measurement(baseline=way, level=2, repeat=3), staged)
        for way in rank_benchmark.WAYS
    }
    assert {way: (cell.baseline, cell.level, cell.repeat) for way, (cell, _) in found.items()} == {
        "allreduce": ("pinned", 1, 3),
        "parameter-server": ("pinned", 1, 3),
        "jobs": ("pinned", 2, 3),
        "subproc": ("subproc", 1, 3),
    }
    jobs = {way: todo.job for way, (_, todo) in found.items()}
    assert {way: job.resources.all_cores for way, job in jobs.items()} == {
        **dict.fromkeys(rank_benchmark.WAYS, 2),
        "jobs": 1,
    }
    assert {way: job.spec.mode for way, job in jobs.items() if way in rank_benchmark.TOGETHER} == {
        way: way for way in rank_benchmark.TOGETHER
    }
    assert {(job.spec.n_envs, job.spec.steps_an_iteration) for job in jobs.values()} == {(4, 256)}
    assert all(job.spec.ranks == job.resources.ranks for job in jobs.values())


def test_an_environment_by_itself_does_what_it_does_in_the_batch(tmp_path: Path) -> None:
    from orchestrator.worker.baselines.subproc import SingleEnv
    from orchestrator.worker.envs import env_factory

    (tmp_path / "robot").mkdir()
    (tmp_path / "robot/hopper.xml").write_bytes(HOPPER.read_bytes())
    spec = make_spec("a-s5", seed=5, n_envs=3, env=None, xml="robot/hopper.xml", task="forward")
    batch = env_factory.make(spec, tmp_path, n_envs=3, seed=5)
    singles = [SingleEnv(spec, tmp_path, number) for number in range(3)]
    batch.seed(5)
    observations = batch.reset()
    np.testing.assert_array_equal(observations, [one.reset(seed=5 + n)[0] for n, one in enumerate(singles)])
    rng, ended = np.random.default_rng(0), 0
    for _ in range(150):
        actions = rng.uniform(-1, 1, (3, *batch.action_space.shape)).astype(np.float32)
        observations, rewards, dones, infos = batch.step(actions)
        for number, one in enumerate(singles):
            observation, reward, terminated, truncated, info = one.step(actions[number])
            assert (reward, terminated or truncated) == (rewards[number], dones[number])
            if dones[number]:
                ended += 1
                np.testing.assert_array_equal(observation, infos[number]["terminal_observation"])
                assert (info["episode"]["r"], truncated) == (
                    infos[number]["episode"]["r"],
                    infos[number]["TimeLimit.truncated"],
                )
                observation, _ = one.reset()
            np.testing.assert_array_equal(observation, observations[number])
    assert ended > 3


# -- what it comes to


def measured(way: str, number: int, throughput: float, *, repeats: int = 5, **more: Any) -> list[dict[str, Any]]:
    """MeasurementLog of which all processes together do so many env_steps/s."""
    made = bench.measurements(way, number, repeats, **more)
    return [{**one, "throughput": throughput * (1 + 0.001 * one["repeat"])} for one in made]


def verdict_of(many: float, wide: float, **more: Any) -> rank_analysis.Verdict:
    """Of one rank with 1,000 env_steps/s, and two."""
    cells = measured("allreduce", 1, 1000, **more) + measured("allreduce", 2, wide, **more)
    cells += measured("jobs", 2, many, **more) + measured("subproc", 2, 1000, **more)
    ways, _ = samples.by_baseline(cells, tuple(rank_benchmark.WAYS))
    found = rank_analysis.verdict(ways, job="dog-s0", cores=1, capacity=2)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("many", "wide", "choice", "words"),
    [
        (1990, 1500, "jobs", "many jobs are better, as long as there are that many to train"),
        (1990, 1900, "either", "many jobs and one wide job do the same work"),
        (1000, 1900, "wide", "one wide job is better"),
        (1990, 900, "jobs", "many jobs are better: it is not certain that one job is faster"),
    ],
)
def test_the_verdict_follows_from_the_figures(many: float, wide: float, choice: str, words: str) -> None:
    found = verdict_of(many, wide)
    assert (found.number, found.choice) == (2, choice)
    assert found.sentences[0].startswith(f"dog-s0, on 2 cores: {words}")
    assert f"2 jobs of one rank do {throughput_ratios.factor(many / wide)} [" in found.sentences[0]
    assert "uncertain)" not in found.sentences[0]
    assert "SubprocVecEnv" in found.sentences[2]


def test_a_single_measurement_is_not_sure() -> None:
    assert "measured once, so uncertain" in verdict_of(1990, 1500, repeats=1).sentences[0]


def test_facts_compare_with_one_rank_and_know_the_share_in_all_reduce(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    folder.mkdir()
    assert rank_analysis.facts(tmp_path) is None
    assert not samples.is_benchmark(tmp_path)
    cells = measured("allreduce", 1, 1000) + measured("allreduce", 2, 1750) + measured("jobs", 2, 1990)
    for one in cells:
        one["processes"] = [{**process, "allreduce_s": process["wall_s"] / 5} for process in one["processes"]]
    (folder / "ranks.json").write_text(json.dumps({**bench.plan(), "arms": list(rank_benchmark.WAYS)}))
    (folder / "ranks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in cells) + '{"arm": "torn')
    found = rank_analysis.facts(tmp_path)
    assert found is not None
    assert samples.is_benchmark(tmp_path)
    wide, many = found["ways"]["allreduce"]["2"], found["ways"]["jobs"]["2"]
    assert wide["speedup"]["median"] == pytest.approx(1.75)
    assert wide["efficiency"]["median"] == pytest.approx(0.875)
    assert wide["allreduce"]["median"] == pytest.approx(0.2)
    assert many["allreduce"] is None
    assert found["one"]["throughput"]["median"] == pytest.approx(1002)
    assert found["verdict"] == {"number": 2, "choice": "jobs"}
    json.dumps(found, allow_nan=False)


# -- what others used, and who is blamed


def test_the_time_of_all_our_processes_is_not_that_of_others(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")

    def load(busy: int, *ours: int) -> drift.Load | None:
        (tmp_path / "stat").write_text(f"cpu0 {busy} 0 0 0 0 0 0 0 0 0\n")
        for pid, ticks in enumerate(ours):
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b) S {'0 ' * 10}{ticks} 0 0 0 0 0 0 0 0\n")
        return drift.load([0], range(len(ours) + 1), tmp_path)  # one of them is gone

    first, last = load(100, 10, 20), load(100 + 9 * tick, 10 + 4 * tick, 20 + 3 * tick)
    assert first is not None
    assert last is not None
    later = drift.Load(busy_s=last.busy_s, ours_s=last.ours_s, clock_s=first.clock_s + 2.0)
    assert later.others_since(first) == pytest.approx(1.0)
    assert first.others_since(first) is None


def test_rank_0_is_not_blamed_for_having_only_its_own_cores(tmp_path: Path) -> None:
    paths = JobPaths(tmp_path)
    paths.spec.write_text(make_spec("wide-s0", ranks=2).to_json())
    paths.timings_csv.write_text(
        "env_steps,wall_s,cpu_s,run_delay_s,throttled_s,n_threads,n_cpus\n1,1,1,0,0,2,1\n2,1,1,0,0,2,1\n"
    )
    attempt = {"number": 0, "cpus": [4, 5, 6, 7], "started_at": 0.0, "ended_at": 1.0, "robot_hash": None}
    assert job_metrics._metrics(paths, [attempt]).cpus == {4, 5}
    narrow = job_metrics._metrics(paths, [{**attempt, "cpus": [4, 5]}])
    metrics = job_metrics.ExperimentMetrics(jobs=[narrow], usable_cpus=2, online_cpus=2, quota=None, lanes=2)
    assert contention.diagnose(metrics) == []


def test_the_benchmarked_policy_has_as_many_numbers_as_stable_baselines3_gives_it() -> None:
    from gymnasium import spaces
    from stable_baselines3.common.policies import ActorCriticPolicy

    from benchmarks.allreduce import ACTIONS, OBSERVATIONS, parameters

    policy = ActorCriticPolicy(
        spaces.Box(-1, 1, (OBSERVATIONS,), np.float32), spaces.Box(-1, 1, (ACTIONS,), np.float32), lambda _: 1e-3
    )
    assert sum(one.numel() for one in policy.parameters()) == parameters(OBSERVATIONS, ACTIONS)
