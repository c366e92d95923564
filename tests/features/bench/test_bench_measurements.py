"""Measurements of ``bench`` with real processes: baselines start as they say, and failures are
explained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import BALANCER, write_experiment

from orchestrator.features.bench import (
    measurement_window,
    plan,
    runner,
    workload,
)
from orchestrator.features.bench.measurement import Measurement
from orchestrator.jobfile import load
from orchestrator.machine import topology
from orchestrator.machine.cpu_locks import CpuLocks, locks_folder

pytestmark = pytest.mark.nightly

WORK = {"name": "balancer", "xml": BALANCER, "task": "balance"}
MAY_LACK = {"throttled_s", "run_delay_s"}
"""Figures that not every kernel measures."""
LONG_S = 120.0


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> workload.Work:
    folder = tmp_path_factory.mktemp("work")
    experiment = load(write_experiment(folder, WORK))
    return workload.examine(experiment, workload.pick(experiment, None), folder / "staging")


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[runner.Setup]:
    with runner.set_up(tmp_path / "work", topology.detect(), print) as made:
        yield made


def measure(
    baseline: str, level: int, todo: workload.Work, setup: runner.Setup, **changes: float
) -> dict[str, Any]:
    settings = {"seconds": 0.2, "limit_s": LONG_S, **changes}
    return runner.measure(
        Measurement(baseline=baseline, level=level, repeat=0), todo, setup, **settings
    )


@pytest.mark.parametrize("baseline", ["pinned", "threads", "pool-fork-pinned", "pool-spawn-pinned"])
def test_a_thread_budget_and_affinity_are_what_the_baseline_says(
    baseline: str, staged: workload.Work, setup: runner.Setup
) -> None:
    level = min(2, setup.machine.capacity)
    record = measure(baseline, level, staged, setup)
    assert record["status"] == "ok", record["message"]
    assert record["window_s"] >= 0.2
    processes = record["processes"]
    env_steps = sum(process["env_steps"] for process in processes)
    assert record["throughput"] == pytest.approx(env_steps / record["window_s"])
    for process in processes:
        assert {name for name, value in process.items() if value is None} <= MAY_LACK
        assert (
            process["env_steps"]
            >= measurement_window.LEAST_ITERATIONS * staged.job.spec.steps_an_iteration
        )
        assert process["updates"] == pytest.approx(process["iterations"] * 2, abs=0.1)
        assert process["learner"] == "fast"
        assert process["n_threads"] <= 2  # itself, and the watchdog of a supervised one
        assert 0 <= process["import_s"] <= process["first_step_s"]
    everywhere = sorted(os.sched_getaffinity(0))
    if baseline == "pinned":
        assert all(len(process["cpus"]) == 1 for process in processes)
        assert len({tuple(process["cpus"]) for process in processes}) == level
    else:
        assert all(process["cpus"] == everywhere for process in processes)
    assert list(setup.scratch.iterdir()) == []


@pytest.mark.parametrize(
    "baseline",
    [
        "default",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("pool-fork", "pool-spawn")),
    ],
)
@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="with one CPU libraries start one thread by themselves"
)
def test_without_a_budget_libraries_start_threads(
    baseline: str, staged: workload.Work, setup: runner.Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # the user's setting is not the libraries' own number
    record = measure(baseline, 1, staged, setup)
    assert record["status"] == "ok", record["message"]
    assert record["processes"][0]["n_threads"] >= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("baseline", "is_told"), [("threads", True), ("pinned", False)])
def test_other_runs_are_told_of_the_cpus_of_a_measurement_while_it_lasts(
    baseline: str,
    is_told: bool,
    staged: workload.Work,
    setup: runner.Setup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a supervisor is measured, it tells them itself."""
    others = CpuLocks(locks_folder())
    seen: list[list[int]] = []
    launch = runner._launch

    def launched(*arguments: Any) -> Any:
        seen.append([holder.cpu for holder in others.others() if holder.pid == os.getpid()])
        return launch(*arguments)

    monkeypatch.setattr(runner, "_launch", launched)
    measure(baseline, 1, staged, setup)
    assert [sorted(cpus) for cpus in seen] == [sorted(setup.cpus) * is_told]
    assert not [holder for holder in others.others() if holder.pid == os.getpid()]


def test_a_window_that_the_time_limit_ends_is_reported(
    staged: workload.Work, setup: runner.Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = runner._wait_for_window
    monkeypatch.setattr(
        runner, "_wait_for_window", lambda running, todo, _, *more: watch(running, todo, 0.1, *more)
    )
    record = measure("threads", 1, staged, setup, seconds=600.0)
    assert record["status"] == "ok"
    assert (
        f"for {record['window_s']:.1f} s only, until the time limit of 120 s" in record["message"]
    )


def test_a_measurement_that_takes_too_long_is_recorded_as_a_bound(
    staged: workload.Work, setup: runner.Setup
) -> None:
    record = measure("threads", 1, staged, setup, seconds=600.0, limit_s=0.0)
    assert record["status"] == "cut"
    assert record["throughput"] > 0
    assert "upper bound" in record["message"]
    assert len(record["processes"]) == 1


@pytest.mark.parametrize(
    ("baseline", "deed", "words"),
    [
        ("pinned", "vanish", "ended with exit code 0 before the training was done"),
        ("threads", "fail", "the knee fell off"),
        ("pool-fork-pinned", "fail", "the knee fell off"),
        ("pool-spawn-pinned", "vanish", "its process was killed"),
    ],
)
def test_a_training_that_fails_makes_a_failed_measurement_with_its_reason(
    baseline: str, deed: str, words: str, tmp_path: Path, setup: runner.Setup
) -> None:
    experiment = load(write_experiment(tmp_path, commands.odd("odd", deed)))
    todo = workload.examine(experiment, workload.pick(experiment, None), tmp_path / "staging")
    record = measure(baseline, 1, todo, setup, seconds=600.0)
    assert record["status"] == "failed"
    assert words in record["message"]
    assert record["throughput"] is None


def test_more_processes_than_cores_share_them(staged: workload.Work, setup: runner.Setup) -> None:
    level = setup.machine.capacity + 1
    if not plan.has_slots(setup.machine, level, 1):
        pytest.skip("the CPU quota forbids it")
    record = measure("pinned", level, staged, setup)
    assert record["status"] == "ok", record["message"]
    assert {len(process["cpus"]) for process in record["processes"]} == {1}
