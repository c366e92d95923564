"""``bench``: cells with all their figures, arms that are what they say, and nothing lost or left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import BALANCER, PATIENCE_S, write_experiment

from orchestrator.bench import (
    baselines,
    benchmark,
    drift,
    measurement_window,
    plan,
    runner,
    strong_scaling,
    tune,
    workload,
)
from orchestrator.bench.baselines import BASELINES
from orchestrator.bench.measurement import Measurement, MeasurementLog, with_disturbance
from orchestrator.bench.measurement_window import TimeSeries
from orchestrator.bench.plan import BenchOptions
from orchestrator.core.environment import THREAD_VARIABLES, TOKEN_VARIABLE
from orchestrator.core.errors import UsageError
from orchestrator.core.timing_columns import COLUMNS, Iteration
from orchestrator.jobfile import load
from orchestrator.machine import topology
from orchestrator.machine.topology import Cpu, Machine

WORK = {"name": "balancer", "xml": BALANCER, "task": "balance"}
MAY_LACK = {"throttled_s", "run_delay_s"}
"""Not every kernel tells them."""
QUICK = ("--repeats", "1", "--seconds", "0.2", "--retakes", "0", "--run-dir", "bench")
MEASURED = (*QUICK, "--levels", "1,2", "--arms", "threads", "--strong-seconds", "1000")
LONG_S = 120.0
FIGURES = {
    *("job", "learner", "env_steps", "updates", "iterations", "wall_s", "env_s", "policy_s", "gae_s", "backward_s"),
    *(
        "optimizer_s",
        "rest_s",
        "cpu_s",
        "run_delay_s",
        "voluntary_switches",
        "involuntary_switches",
        "throttled_s",
        "rss_mib",
    ),
    *("n_threads", "import_s", "first_step_s", "cpus", "allreduce_s"),
}


def records(run_dir: Path) -> list[dict[str, Any]]:
    return MeasurementLog(run_dir / "bench/cells.jsonl").read()


def key(record: dict[str, Any]) -> tuple[str, int, int]:
    return record["arm"], record["level"], record["repeat"]


class Bench:
    """A ``bench`` under way, in a session of its own."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        self.popen = subprocess.Popen(
            commands.command("bench", *arguments),
            cwd=cwd,
            env=commands.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate()

    def until(self, words: str) -> str:
        assert self.popen.stderr is not None
        told = []
        for line in self.popen.stderr:
            told.append(line)
            if words in line:
                return line
        raise AssertionError(f"never told {words!r}: {told}")


def token_below(pid: int) -> bytes:
    """What marks all that the process with ``pid`` has started."""

    def look() -> bytes | None:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError, StopIteration):
                return commands.token_of(int(child))
        return None

    found: bytes = commands.wait_until(look, "a process of a cell")
    return found


# -- the command


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``bench`` has measured a job file of two jobs, all that it measures."""
    folder = tmp_path_factory.mktemp("measured")
    jobs = write_experiment(folder, WORK, {**WORK, "name": "long", "total_timesteps": 2048})
    done = commands.give("bench", jobs, *MEASURED, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_measurements_are_recorded_with_their_figures(measured: Path) -> None:
    found = records(measured / "bench")
    assert {key(one) for one in found} == {("threads", level, 0) for level in (1, 2)}
    for one in found:
        assert one["status"] in ("ok", "disturbed", "cut"), one["message"]
        assert one["throughput"] > 0
        assert len(one["processes"]) == one["level"]
        assert all(process.keys() == FIGURES for process in one["processes"])
        assert {"before_s", "after_s", "reference_s"} <= one["drift"].keys()
    document = json.loads((measured / "bench/bench/plan.json").read_text())
    assert document["jobs"] == ["balancer-s0"]
    assert document["levels"] == [1, 2]
    assert sorted(map(tuple, document["order"])) == sorted(map(key, found))
    assert not (measured / "bench/bench/work").exists()


def test_strong_scaling_gives_makespans_bounds_and_a_schedule(measured: Path) -> None:
    found = json.loads((measured / "bench/bench/strong.json").read_text())
    assert found["part"] == 1.0
    assert found["levels"].keys() == {"1", "2"}
    for entry in found["levels"].values():
        steps = {one["job_id"]: one["env_steps"] for one in entry["jobs"]}
        assert steps == {"balancer-s0": 512, "long-s0": 2048}
        assert entry["makespan_s"] == max(one["ended_s"] for one in entry["jobs"])
        assert entry["lower_bound_s"] > 0
    alone = sorted(found["levels"]["1"]["jobs"], key=lambda one: one["started_s"])
    assert alone[0]["ended_s"] <= alone[1]["started_s"] + 0.1


def test_a_second_call_adds_what_is_missing(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "bench/bench/cells.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:50])  # killed while it wrote the last one
    again = commands.give("bench", measured / "jobs.toml", *MEASURED, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "1 of 2 measurements are already finished" in again.stderr
    assert path.read_bytes().startswith(b"".join(lines[:-1]))
    assert [key(one) for one in records(tmp_path / "bench")] == list(map(key, records(measured / "bench")))


def test_a_benchmark_with_other_settings_is_not_gone_on_with(measured: Path) -> None:
    path = measured / "bench/bench/plan.json"
    found = json.loads(path.read_text())
    assert plan.begin(path, found) == found
    with pytest.raises(
        UsageError, match=r"other settings: seconds was 0\.2, is 0\.3; machine\.cpu_quota was .*, is 9\."
    ):
        plan.begin(path, {**found, "seconds": 0.3, "machine": {**found["machine"], "cpu_quota": 9}})


def test_ctrl_c_keeps_what_is_finished_and_leaves_no_process(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    options = (*QUICK, "--levels", "1", "--arms", "threads,pool-spawn-pinned", "--repeats", "50", "--no-strong")
    with Bench(jobs, *options, cwd=tmp_path) as bench:
        bench.until("[1/")
        token = token_below(bench.popen.pid)
        os.killpg(bench.popen.pid, signal.SIGINT)
        _, said = bench.popen.communicate(timeout=PATIENCE_S)
        assert bench.popen.returncode == 130, said
        assert "Traceback" not in said
    assert commands.carriers(token) == []
    assert len(records(tmp_path / "bench")) >= 1
    assert not (tmp_path / "bench/bench/work").exists()


def test_no_process_outlives_a_benchmark_that_was_killed(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    options = (*QUICK, "--seconds", "1", "--levels", "2", "--arms", "pool-spawn-pinned", "--no-strong")
    with Bench(jobs, *options, cwd=tmp_path) as bench:
        folder = tmp_path / "bench/bench/work"
        commands.wait_until(lambda: list(folder.glob("*-2-0/**/timings.csv")), "a cell that trains")
        token = token_below(bench.popen.pid)
        assert len(commands.carriers(token)) >= 3
        bench.popen.kill()
        bench.popen.wait()
        commands.wait_until(lambda: not commands.carriers(token), "their end")


def test_nothing_that_a_supervised_training_has_started_outlives_it_either(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, commands.odd("odd", "have_children"))
    with Bench(jobs, *QUICK, "--levels", "1", "--arms", "pinned", cwd=tmp_path) as bench:
        folder = tmp_path / "bench/bench/work"
        commands.wait_until(
            lambda: any("children" in path.read_text() for path in folder.glob("**/worker.log")),
            "a worker with children",
        )
        tokens = {commands.token_of(pid) for pid in pids_with(folder)}
        assert len(tokens) == 2, "the benchmark's, and the supervisor's own"
        assert sum(len(commands.carriers(token)) for token in tokens) >= 4
        bench.popen.kill()
        bench.popen.wait()
        commands.wait_until(lambda: not any(map(commands.carriers, tokens)), "their end")


def pids_with(folder: Path) -> set[int]:
    """Processes that were given a path below ``folder``."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if str(folder).encode() in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
    return found


def test_wrong_usage_names_what_would_be_right(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    calls: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: baselines.chosen("pinned,ray"), ["unknown: ray", "valid: pinned, threads, default, pool-fork"]),
        (lambda: plan.levels("two", cores(2), 1), ["--levels two", "auto"]),
        (lambda: workload.pick(load(jobs), "walker"), ["--job walker", "valid: balancer"]),
        (
            lambda: workload.pick(load(jobs, overrides={"resources.gpus": 1}), None),
            ["GPU", "--set resources.gpus=0"],
        ),
    ]
    for call, words in calls:
        with pytest.raises(UsageError) as error:
            call()
        assert all(word in str(error.value) for word in words), error.value


def test_the_command_refuses_wrong_usage_and_writes_nothing(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    done = commands.give("bench", jobs, "--job", "walker", "--run-dir", "bench", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--job walker" in done.stderr
    assert not (tmp_path / "bench/bench/plan.json").exists()


def test_an_experiments_run_directory_is_not_taken(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/ledger.sqlite3").touch()
    with pytest.raises(UsageError, match="holds an experiment"):
        benchmark.run(load(jobs), BenchOptions(run_dir=tmp_path / "run"), lambda _: None)


# -- cells of real processes


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> workload.Work:
    folder = tmp_path_factory.mktemp("work")
    experiment = load(write_experiment(folder, WORK))
    return workload.examine(experiment, workload.pick(experiment, None), folder / "staging")


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[runner.Setup]:
    with runner.set_up(tmp_path / "work", topology.detect(), print) as made:
        yield made


def measure(arm: str, level: int, todo: workload.Work, setup: runner.Setup, **changes: float) -> dict[str, Any]:
    settings = {"seconds": 0.2, "limit_s": LONG_S, "reference_s": 1.0, **changes}
    return runner.measure(Measurement(baseline=arm, level=level, repeat=0), todo, setup, **settings)


@pytest.mark.parametrize("arm", ["pinned", "threads", "pool-fork-pinned", "pool-spawn-pinned"])
def test_a_thread_budget_and_affinity_are_what_the_baseline_says(
    arm: str, staged: workload.Work, setup: runner.Setup
) -> None:
    level = min(2, setup.machine.capacity)
    record = measure(arm, level, staged, setup)
    assert record["status"] == "ok", record["message"]
    assert record["window_s"] >= 0.2
    processes = record["processes"]
    assert record["throughput"] == pytest.approx(sum(one["env_steps"] for one in processes) / record["window_s"])
    for one in processes:
        assert {name for name, value in one.items() if value is None} <= MAY_LACK
        assert one["env_steps"] >= measurement_window.LEAST * staged.job.spec.steps_an_iteration
        assert one["updates"] == pytest.approx(one["iterations"] * 2, abs=0.1)
        assert one["learner"] == "fast"
        assert one["n_threads"] <= 2  # itself, and the watchdog of a supervised one
        assert 0 <= one["import_s"] <= one["first_step_s"]
    everywhere = sorted(os.sched_getaffinity(0))
    if arm == "pinned":
        assert all(len(one["cpus"]) == 1 for one in processes)
        assert len({tuple(one["cpus"]) for one in processes}) == level
    else:
        assert all(one["cpus"] == everywhere for one in processes)
    assert list(setup.scratch.iterdir()) == []


@pytest.mark.parametrize(
    "arm", ["default", *(pytest.param(arm, marks=pytest.mark.slow) for arm in ("pool-fork", "pool-spawn"))]
)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one CPU libraries start one thread by themselves")
def test_without_a_budget_libraries_start_threads(
    arm: str, staged: workload.Work, setup: runner.Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what the user's shell says is not what libraries do by themselves
    record = measure(arm, 1, staged, setup)
    assert record["status"] == "ok", record["message"]
    assert record["processes"][0]["n_threads"] >= len(os.sched_getaffinity(0))


def test_a_window_that_the_time_limit_ends_is_told(
    staged: workload.Work, setup: runner.Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = runner._watch
    monkeypatch.setattr(runner, "_watch", lambda running, todo, _, *more: watch(running, todo, 0.1, *more))
    record = measure("threads", 1, staged, setup, seconds=600.0)
    assert record["status"] == "ok"
    assert f"for {record['window_s']:.1f} s only, until the time limit of 120 s" in record["message"]


def test_a_measurement_that_takes_too_long_is_recorded_as_a_bound(staged: workload.Work, setup: runner.Setup) -> None:
    record = measure("threads", 1, staged, setup, seconds=600.0, limit_s=0.0)
    assert record["status"] == "cut"
    assert record["throughput"] > 0
    assert "upper bound" in record["message"]
    assert len(record["processes"]) == 1


@pytest.mark.parametrize(
    ("arm", "deed", "words"),
    [
        ("pinned", "vanish", "ended with exit code 0 before the training was done"),
        ("threads", "fail", "the knee fell off"),
        ("pool-fork-pinned", "fail", "the knee fell off"),
        ("pool-spawn-pinned", "vanish", "its process was killed"),
    ],
)
def test_a_training_that_fails_makes_a_failed_measurement_with_its_reason(
    arm: str, deed: str, words: str, tmp_path: Path, setup: runner.Setup
) -> None:
    experiment = load(write_experiment(tmp_path, commands.odd("odd", deed)))
    todo = workload.examine(experiment, workload.pick(experiment, None), tmp_path / "staging")
    record = measure(arm, 1, todo, setup, seconds=600.0)
    assert record["status"] == "failed"
    assert words in record["message"]
    assert record["throughput"] is None


def test_more_processes_than_cores_share_them(staged: workload.Work, setup: runner.Setup) -> None:
    level = 2 * setup.machine.capacity
    if not plan.has_slots(setup.machine, level, 1):
        pytest.skip("the CPU quota forbids it")
    record = measure("pinned", level, staged, setup)
    assert record["status"] == "ok", record["message"]
    assert {len(one["cpus"]) for one in record["processes"]} == {1}


# -- tuning


@pytest.mark.slow
def test_tuning_gives_lines_that_a_job_file_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = write_experiment(tmp_path, WORK)
    monkeypatch.setattr(tune, "packings", lambda _: [(1, 1)])
    monkeypatch.setattr(tune, "FACTORS", (2.0,))
    monkeypatch.setattr(tune, "ROUNDS", 2)
    options = BenchOptions(run_dir=tmp_path / "bench", tune=True, seconds=0.2)
    lines = benchmark.run(load(jobs), options, lambda _: None).lines
    found = json.loads((tmp_path / "bench/bench/tune.json").read_text())
    assert found["best"] in found["points"]
    assert [len(point["samples"]) for point in found["points"]] == [2, 2]
    (tmp_path / "tuned.toml").write_text(
        "\n".join(
            ['name = "tuned"', *lines, "[[jobs]]", 'name = "balancer"', f'xml = "{BALANCER}"', 'task = "balance"']
        )
    )
    tuned = load(tmp_path / "tuned.toml", overrides={"ppo.batch_size": 64})
    assert tuned.max_parallel == found["best"]["processes"]
    assert tuned.jobs[0].spec.n_envs == found["best"]["n_envs"]
    assert tuned.jobs[0].spec.hyperparameters["n_steps"] * tuned.jobs[0].spec.n_envs == 128


# -- decisions and figures, without processes


def test_environments_differ_in_the_thread_budget_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.worker.training.timings import OFF_VARIABLE

    assert baselines.NO_TIMINGS == OFF_VARIABLE
    given = {"OMP_NUM_THREADS": "7", "KMP_AFFINITY": "compact", "ORCHESTRATOR_NO_TIMINGS": "1", "HOME": "/home/me"}
    monkeypatch.setattr(os, "environ", given)
    free = baselines.environment(BASELINES["default"], 3, token="t")
    limited = baselines.environment(BASELINES["threads"], 3, token="t")
    assert not {*THREAD_VARIABLES, "KMP_AFFINITY", "ORCHESTRATOR_NO_TIMINGS"} & free.keys()
    assert free["HOME"] == "/home/me"
    assert free[TOKEN_VARIABLE] == "t"
    assert {name: limited[name] for name in THREAD_VARIABLES} == dict.fromkeys(THREAD_VARIABLES, "3")
    assert free.items() <= limited.items()


def cores(count: int, *, siblings: int = 1, quota: float | None = None, memory_mib: int = 64_000) -> Machine:
    cpus = [Cpu(index=index, core=index % count, package=0, numa_node=0) for index in range(count * siblings)]
    return Machine(cpus=tuple(cpus), quota=quota, memory_total_mib=memory_mib)


@pytest.mark.parametrize(
    ("text", "count", "wide", "wanted"),
    [
        ("auto", 1, 1, (1, 2)),
        ("auto", 2, 1, (1, 2, 4)),
        ("auto", 6, 1, (1, 2, 4, 6, 12)),
        ("auto", 8, 2, (1, 2, 4, 8)),
        ("8,1, 2", 2, 1, (1, 2, 8)),
    ],
)
def test_levels(text: str, count: int, wide: int, wanted: tuple[int, ...]) -> None:
    assert plan.levels(text, cores(count), wide) == wanted


def test_levels_that_memory_cannot_hold_are_left_out_or_refused() -> None:
    assert plan.levels("auto", cores(4, memory_mib=2000), 1) == (1, 2, 4)
    assert plan.levels("auto", cores(1, memory_mib=300), 1) == (1,)
    with pytest.raises(UsageError, match=r"--levels 1,6: 6 processes of 400 MiB do not fit into .* 2,000 MiB.* most 5"):
        plan.levels("1,6", cores(4, memory_mib=2000), 1)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-2"])
def test_levels_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--levels"):
        plan.levels(text, cores(2), 1)


def test_a_quota_limits_what_the_supervisor_runs_at_once() -> None:
    assert plan.has_slots(cores(4), 8, 1)
    assert not plan.has_slots(cores(4, quota=2.5), 4, 1)


def test_levels_beyond_the_machine_are_said() -> None:
    assert benchmark.notes(cores(4), [1, 2, 4], [], 1, ["pinned"]) == []
    over = benchmark.notes(cores(4), [1, 4, 8, 16], [16], 1, ["pinned"])
    assert over[0] == "Over-subscribed: 8, 16 processes with 1 core each share 4 cores."
    assert "never runs 16 such jobs at once" in over[1]
    assert "may not fit" in benchmark.notes(cores(4), [10**6], [], 1, ["default"])[-1]


def test_each_repeat_holds_every_measurement_once_in_an_order_that_the_seed_decides() -> None:
    wanted = {(arm, level) for arm in ("pinned", "default") for level in (1, 2, 4)}
    cells = plan.order(("pinned", "default"), (1, 2, 4), 3, seed=1)
    for repeat in range(3):
        block = cells[repeat * 6 : repeat * 6 + 6]
        assert {(cell.baseline, cell.level) for cell in block} == wanted
        assert {cell.repeat for cell in block} == {repeat}
    assert cells == plan.order(("pinned", "default"), (1, 2, 4), 3, seed=1)
    assert cells != plan.order(("pinned", "default"), (1, 2, 4), 3, seed=2)


NO_FIGURES = Iteration._make([None] * len(COLUMNS))


def series(ends: Sequence[float], **changes: Any) -> TimeSeries:
    """A process whose iterations of 100 env_steps ended at ``ends``; the first began at 0."""
    rows = []
    for begin, end in itertools.pairwise([0.0, *ends]):
        took = end - begin
        rows.append(
            NO_FIGURES._replace(
                clock_s=end, wall_s=took, env_s=took / 2, cpu_s=took, policy_s=took / 4, gae_s=0.0, optimizer_s=0.0
            )._replace(backward_s=took / 8, voluntary_switches=10.0, rss_mib=9.0, n_threads=2.0)
        )
    return TimeSeries(**{"job": "j", "steps_an_iteration": 100, "updates_an_iteration": 4, "rows": rows, **changes})


def test_the_window_is_when_all_are_warm_and_iterations_are_shared_out_by_time() -> None:
    fast, other, slow = series([1, 2, 3, 4, 5, 6, 7, 8]), series([2, 4, 5.5, 7, 9]), series([3, 6, 9, 12, 15])
    span = measurement_window.window([fast, other])
    assert span is not None
    assert (span.begin, span.end) == (4.0, 8.0)
    found = measurement_window.measured([fast, other], span)
    assert [process["env_steps"] for process in found["processes"]] == [400, 250]
    assert found["throughput"] == pytest.approx(650 / 4)
    one = found["processes"][0]
    assert (one["updates"], one["wall_s"], one["env_s"], one["rest_s"]) == (16, 4, 2, 0.5)
    assert one["run_delay_s"] is None
    assert one["voluntary_switches"] == 40
    assert measurement_window.window([fast, slow]) is None  # when the slow one was warm, the fast one's rows end soon
    assert measurement_window.window([fast, series([1.0, 2.0])]) is None


def test_a_bound_is_never_below_what_was_reached() -> None:
    # 7 iterations of 100 env_steps since the warm-up ended at 2; now it is 9.5.
    found = measurement_window.bounded([series([1, 2, 3, 4, 5, 6, 7, 8, 9])], 9.5)
    assert found["throughput"] == pytest.approx(800 / 7.5)
    assert found["processes"][0]["env_steps"] == 700
    # Its first iteration has not ended: less than 100 env_steps in 20 s.
    assert measurement_window.bounded([series([], begun_at=10.0)], 30.0)["throughput"] == pytest.approx(5.0)
    assert measurement_window.bounded([series([8.0])], 10.0)["throughput"] == pytest.approx(20.0)


def record(status: str, disturbance: str = "", repeat: int = 0) -> dict[str, Any]:
    cell = {"arm": "pinned", "level": 1, "repeat": repeat}
    return {**cell, "status": status, "throughput": 5.0, "message": "m", "disturbance": disturbance}


def test_a_disturbed_measurement_is_marked_and_taken_again_a_bounded_number_of_times(tmp_path: Path) -> None:
    cells, cell = MeasurementLog(tmp_path / "cells.jsonl"), Measurement(baseline="pinned", level=1, repeat=0)
    marked = with_disturbance(record("ok", "a hog"), again=True)
    assert (marked["status"], marked["throughput"], marked["message"]) == ("disturbed", 5.0, "a hog")
    for _ in range(2):
        cells.append(marked)
        assert cells.missing([cell], 2) == [cell]
    cells.append(marked)
    assert cells.missing([cell], 2) == []
    cells.append(record("failed", repeat=1))
    assert cells.missing([Measurement(baseline="pinned", level=1, repeat=1)], 2) != []


def test_a_bound_under_a_disturbance_counts_only_when_it_is_not_taken_again() -> None:
    assert with_disturbance(record("cut", "a hog"), again=True)["status"] == "disturbed"
    assert with_disturbance(record("cut", "a hog"), again=True)["throughput"] is None
    assert with_disturbance(record("cut", "a hog"), again=False)["status"] == "cut"
    assert with_disturbance(record("failed", "a hog"), again=False) == record("failed", "a hog")


def test_disturbances_are_seen_in_the_kernels_time_and_in_what_others_use() -> None:
    assert drift.disturbance(1.0, (1.1, 1.0), 0.1) == ""
    assert "30% slower" in drift.disturbance(1.0, (1.0, 1.3), None)
    assert "0.5 cores" in drift.disturbance(1.0, (1.0, 1.0), 0.5)
    stat = "cpu  9 9 9 9 9 9 9 9\ncpu0 100 20 30 999 999 1 2 7 0 0\ncpu1 1 1 1 9 9 1 1 1 0 0\nintr 5\n"
    tick = os.sysconf("SC_CLK_TCK")
    assert drift.busy_s(stat, [0]) == 160 / tick
    assert drift.busy_s(stat, [0, 1]) == 166 / tick
    assert drift.busy_s(stat, [0, 2]) is None
    before = os.sched_getaffinity(0)
    assert drift.kernel_s(sorted(before)) > 0
    assert os.sched_getaffinity(0) == before


def test_the_whole_job_file_is_scaled_by_one_factor_to_whole_iterations(tmp_path: Path) -> None:
    experiment = load(write_experiment(tmp_path, WORK, {**WORK, "name": "long", "total_timesteps": 51_200}))
    short, part = strong_scaling.scaled(experiment.jobs, 5171.2)
    assert part == pytest.approx(0.1)
    assert [job.spec.total_timesteps for job in short] == [3 * 128, 5120]
    assert all(job.spec.eval_episodes == 0 for job in short)
    assert strong_scaling.scaled(experiment.jobs, 1e9)[1] == 1.0


def test_no_schedule_beats_the_lower_bound() -> None:
    jobs = [(4.0, 1), (2.0, 1), (2.0, 1)]
    assert strong_scaling.lower_bound_s(jobs, at_once=1, cores=2) == 8.0
    assert strong_scaling.lower_bound_s(jobs, at_once=4, cores=2) == 4.0
    assert strong_scaling.lower_bound_s([(9.0, 1), (2.0, 1)], at_once=2, cores=2) == 9.0
    assert strong_scaling.lower_bound_s([(4.0, 2), (4.0, 2)], at_once=2, cores=2) == 8.0


def test_packings_use_the_cores_by_processes_by_threads_and_with_smt() -> None:
    assert tune.packings(cores(1)) == [(1, 1)]
    assert tune.packings(cores(4)) == [(4, 1), (2, 2), (1, 4), (2, 1)]
    assert (8, 1) in tune.packings(cores(4, siblings=2))
    assert all(processes <= 2 for processes, _ in tune.packings(cores(4, quota=2.0)))
    assert tune.packings(cores(4, memory_mib=900)) == [(2, 2), (1, 4), (2, 1)]
