"""What ``bench`` decides and computes: levels, order, measurement window, bounds."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_helpers import BALANCER, write_experiment
from measurement_helpers import machine_with

from orchestrator.core.decoding import from_values
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.processes.environment_variables import THREAD_VARIABLES, TOKEN_VARIABLE
from orchestrator.core.timing_columns import COLUMNS, Iteration
from orchestrator.features.bench import (
    baselines,
    benchmark,
    measurement_window,
    plan,
    runner,
    strong_scaling,
    weak_scaling,
    workload,
)
from orchestrator.features.bench.baselines import BASELINES
from orchestrator.features.bench.measured_processes import MeasuredProcesses
from orchestrator.features.bench.measurement import Measurement, MeasurementLog
from orchestrator.features.bench.measurement_window import TimeSeries
from orchestrator.features.bench.strong_scaling import Level, StrongScaling
from orchestrator.jobfile import load

WORK = {"name": "balancer", "xml": BALANCER, "task": "balance"}


def test_environments_differ_in_the_thread_budget_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    users_own = {
        "OMP_NUM_THREADS": "7",
        "KMP_AFFINITY": "compact",
        "HOME": "/home/me",
    }
    monkeypatch.setattr(os, "environ", users_own)
    free = baselines.environment(BASELINES["default"], 3, token="t")
    limited = baselines.environment(BASELINES["threads"], 3, token="t")
    assert not {*THREAD_VARIABLES, "KMP_AFFINITY"} & free.keys()
    assert free["HOME"] == "/home/me"
    assert free[TOKEN_VARIABLE] == "t"
    assert {name: limited[name] for name in THREAD_VARIABLES} == dict.fromkeys(
        THREAD_VARIABLES, "3"
    )
    assert free.items() <= limited.items()


@pytest.mark.parametrize(
    ("text", "count", "wide", "expected"),
    [
        ("auto", 1, 1, (1, 2)),
        ("auto", 2, 1, (1, 2, 4)),
        ("auto", 6, 1, (1, 2, 4, 6, 12)),
        ("auto", 8, 2, (1, 2, 4, 8)),
        ("8,1, 2", 2, 1, (1, 2, 8)),
    ],
)
def test_levels_follow_the_cores(
    text: str, count: int, wide: int, expected: tuple[int, ...]
) -> None:
    assert plan.levels(text, machine_with(count), wide) == expected


def test_levels_that_memory_cannot_hold_are_left_out_or_refused() -> None:
    assert plan.levels("auto", machine_with(4, memory_mib=2000), 1) == (1, 2, 4)
    assert plan.levels("auto", machine_with(1, memory_mib=300), 1) == (1,)
    with pytest.raises(
        UsageError,
        match=r"--levels 1,6: 6 processes of 400 MiB do not fit into .* 2,000 MiB.* most 5",
    ):
        plan.levels("1,6", machine_with(4, memory_mib=2000), 1)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-2"])
def test_levels_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--levels"):
        plan.levels(text, machine_with(2), 1)


def test_a_quota_limits_what_the_supervisor_runs_at_once() -> None:
    assert plan.has_slots(machine_with(4), 8, 1)
    assert not plan.has_slots(machine_with(4, quota=2.5), 4, 1)


def test_levels_beyond_the_machine_are_noted() -> None:
    assert benchmark.notes(machine_with(4), [1, 2, 4], [], 1, ["pinned"]) == []
    over = benchmark.notes(machine_with(4), [1, 4, 8, 16], [16], 1, ["pinned"])
    assert over[0] == "Over-subscribed: 8, 16 processes with 1 core each share 4 cores."
    assert "never runs 16 such jobs at once" in over[1]
    assert "may not fit" in benchmark.notes(machine_with(4), [10**6], [], 1, ["default"])[-1]


def test_each_repeat_holds_every_measurement_once_in_an_order_that_the_seed_decides() -> None:
    expected = {(baseline, level) for baseline in ("pinned", "default") for level in (1, 2, 4)}
    order = plan.order(("pinned", "default"), (1, 2, 4), 3, seed=1)
    for repeat in range(3):
        block = order[repeat * 6 : repeat * 6 + 6]
        assert {(measurement.baseline, measurement.level) for measurement in block} == expected
        assert {measurement.repeat for measurement in block} == {repeat}
    assert order == plan.order(("pinned", "default"), (1, 2, 4), 3, seed=1)
    assert order != plan.order(("pinned", "default"), (1, 2, 4), 3, seed=2)


NO_FIGURES = Iteration._make([None] * len(COLUMNS))


def series(ends: Sequence[float], **changes: Any) -> TimeSeries:
    """A process whose iterations of 100 env_steps ended at ``ends``; the first began at 0."""
    rows = []
    for begin, end in itertools.pairwise([0.0, *ends]):
        took = end - begin
        rows.append(
            NO_FIGURES._replace(
                clock_s=end,
                wall_s=took,
                env_s=took / 2,
                cpu_s=took,
                policy_s=took / 4,
                gae_s=0.0,
                optimizer_s=0.0,
            )._replace(backward_s=took / 8, voluntary_switches=10.0, rss_mib=9.0, n_threads=2.0)
        )
    return TimeSeries(
        **{
            "job": "j",
            "steps_an_iteration": 100,
            "updates_an_iteration": 4,
            "rows": rows,
            **changes,
        }
    )


def test_the_window_is_when_all_are_warm_and_iterations_are_shared_out_by_time() -> None:
    fast, other, slow = (
        series([1, 2, 3, 4, 5, 6, 7, 8]),
        series([2, 4, 5.5, 7, 9]),
        series([3, 6, 9, 12, 15]),
    )
    span = measurement_window.window([fast, other])
    assert span is not None
    assert (span.begin, span.end) == (4.0, 8.0)
    figures = measurement_window.throughput_in([fast, other], span)
    assert [process["env_steps"] for process in figures["processes"]] == [400, 250]
    assert figures["throughput"] == pytest.approx(650 / 4)
    first = figures["processes"][0]
    assert (first["updates"], first["wall_s"], first["env_s"], first["rest_s"]) == (16, 4, 2, 0.5)
    assert first["run_delay_s"] is None
    assert first["voluntary_switches"] == 40
    assert (
        measurement_window.window([fast, slow]) is None
    )  # when the slow one was warm, the fast one's rows end soon
    assert measurement_window.window([fast, series([1.0, 2.0])]) is None


def test_an_upper_bound_is_never_below_the_measured_throughput() -> None:
    # 7 iterations of 100 env_steps since the warm-up ended at 2; now it is 9.5.
    bound = measurement_window.throughput_bound([series([1, 2, 3, 4, 5, 6, 7, 8, 9])], 9.5)
    assert bound["throughput"] == pytest.approx(800 / 7.5)
    assert bound["processes"][0]["env_steps"] == 700
    # Its first iteration has not ended: less than 100 env_steps in 20 s.
    assert measurement_window.throughput_bound([series([], begun_at=10.0)], 30.0)[
        "throughput"
    ] == pytest.approx(5.0)
    assert measurement_window.throughput_bound([series([8.0])], 10.0)[
        "throughput"
    ] == pytest.approx(20.0)


def test_what_a_worker_writes_after_the_cut_does_not_count(tmp_path: Path) -> None:
    paths = {job_id: JobPaths(tmp_path / job_id) for job_id in ("quick", "late")}
    for job_id, ends in (("quick", (1.0, 2.0, 3.0, 40.0)), ("late", (35.0, 40.0))):
        paths[job_id].root.mkdir()
        rows = "".join(f"{number},100,1.0,{end}\n" for number, end in enumerate(ends))
        paths[job_id].timings_csv.write_text(f"iteration,env_steps,wall_s,clock_s\n{rows}")
        paths[job_id].begun.write_text(json.dumps({"clock_s": ends[0] - 1.0}))
    work: Any = SimpleNamespace(
        job=SimpleNamespace(spec=SimpleNamespace(steps_an_iteration=100)), updates_an_iteration=None
    )
    processes = MeasuredProcesses(
        popens=[], jobs=paths, run_dir=None, log=tmp_path / "log", launched_at=0.0
    )
    quick, late = runner._time_series(processes, work, {}, until=10.0)
    assert [row.clock_s for row in quick.rows] == [1.0, 2.0, 3.0]
    assert (late.rows, late.begun_at) == ([], 0.0)
    # In 8 s less than two iterations, and in 10 s less than one.
    assert measurement_window.throughput_bound([quick, late], 10.0)["throughput"] == pytest.approx(
        200 / 8 + 100 / 10
    )


def record(status: str, repeat: int) -> dict[str, Any]:
    key = {"arm": "pinned", "level": 1, "repeat": repeat}
    return {**key, "status": status, "throughput": 5.0, "message": "m"}


def test_a_measurement_that_failed_waits_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new: Any = {
        "order": [["pinned", 1, 0], ["pinned", 1, 1]],
        "calibration": {"cell_s": 1.0, "throughput": 5.0},
        "work": {"cores": 1},
        "machine": {"capacity": 1},
        "seconds": 1.0,
    }
    results = iter([record("failed", 0), record("ok", 1)])  # a third call would be StopIteration
    monkeypatch.setattr(weak_scaling, "measure", lambda *_, **__: next(results))
    monkeypatch.setattr(plan, "begin", lambda _path, document: document)
    setup: Any = SimpleNamespace(tell=lambda _: None)
    work: Any = None
    log = MeasurementLog(tmp_path / "cells.jsonl")
    assert weak_scaling.run(new, tmp_path / "plan.json", log, work, setup).failed == 1
    repeats = [Measurement(baseline="pinned", level=1, repeat=repeat) for repeat in (0, 1)]
    assert log.missing(repeats) == repeats[:1]


def test_the_whole_job_file_is_scaled_by_one_factor_to_whole_iterations(tmp_path: Path) -> None:
    experiment = load(
        write_experiment(tmp_path, WORK, {**WORK, "name": "long", "total_timesteps": 51_200})
    )
    short, part = strong_scaling.shortened_jobs(experiment.jobs, 5171.2)
    assert part == pytest.approx(0.1)
    assert [job.spec.total_timesteps for job in short] == [3 * 128, 5120]
    assert all(job.spec.eval_episodes == 0 for job in short)
    assert strong_scaling.shortened_jobs(experiment.jobs, 1e9)[1] == 1.0


def test_no_schedule_beats_the_lower_bound() -> None:
    jobs = [(4.0, 1), (2.0, 1), (2.0, 1)]
    assert strong_scaling.lower_bound_s(jobs, jobs_at_once=1, cores=2) == 8.0
    assert strong_scaling.lower_bound_s(jobs, jobs_at_once=4, cores=2) == 4.0
    assert strong_scaling.lower_bound_s([(9.0, 1), (2.0, 1)], jobs_at_once=2, cores=2) == 9.0
    assert strong_scaling.lower_bound_s([(4.0, 2), (4.0, 2)], jobs_at_once=2, cores=2) == 8.0


def level_of(ended_s: float, **states: str) -> dict[str, Any]:
    jobs = [
        {"job_id": name, "state": state, "started_s": 0.0, "ended_s": ended_s, "cpus": [0]}
        for name, state in states.items()
    ]
    return {"makespan_s": ended_s, "jobs": jobs}


def strong_with(levels: Mapping[str, Any]) -> StrongScaling:
    values = {**STRONG, "total_timesteps": {"a": 640, "b": 640}, "levels": levels}
    return from_values(StrongScaling, values)


def test_bounds_come_from_the_lowest_level_with_all_jobs_completed() -> None:
    levels = {
        "1": level_of(1.0, a="FAILED", b="SUCCEEDED"),
        "2": level_of(8.0, a="SUCCEEDED", b="SUCCEEDED"),
        "4": level_of(5.0, a="SUCCEEDED"),  # b was never launched
    }
    strong = strong_with(levels)
    assert {level: strong.incomplete(level) for level in levels} == {
        "1": ["a FAILED"],
        "2": [],
        "4": ["b PENDING"],
    }
    assert strong.incomplete(8) == ["a PENDING", "b PENDING"]
    failed, complete, short = strong.levels.values()
    bounded = strong_with({}).with_level(1, failed, 2)
    assert bounded.levels["1"].lower_bound_s is None
    bounded = bounded.with_level(4, short, 2).with_level(2, complete, 2)
    assert [level.bound_by_level for level in bounded.levels.values()] == [2, 2, 2]
    assert bounded.levels["2"].lower_bound_s == 8.0


def test_an_incomplete_level_is_measured_again_and_counts_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, experiment = RunPaths(tmp_path / "run"), load(write_experiment(tmp_path, WORK))
    paths.bench.mkdir(parents=True)
    (job_id,) = (job.job_id for job in experiment.jobs)
    results = iter(["FAILED", "SUCCEEDED"])

    def measured(*_: Any) -> Level:
        return from_values(Level, level_of(4.0, **{job_id: next(results)}))

    monkeypatch.setattr(strong_scaling, "_measure", measured)
    setup: Any = SimpleNamespace(tell=lambda _: None, machine=machine_with(2))
    options: Any = SimpleNamespace(strong_seconds=1.0, seed=0)
    failed = [strong_scaling.run(experiment, options, paths, [1], setup, 1000.0) for _ in range(3)]
    assert failed == [1, 0, 0]
    written = json.loads((paths.bench / "strong.json").read_text())
    expected = {**level_of(4.0, **{job_id: "SUCCEEDED"}), "lower_bound_s": 4.0, "bound_by_level": 1}
    assert written["levels"]["1"]["jobs"][0].pop("env_steps") == 0
    assert written["levels"] == {"1": expected}


STRONG = {
    "format": strong_scaling.FORMAT,
    "fingerprints": {"a": "0a"},
    "part": 0.5,
    "total_timesteps": {"a": 640},
    "levels": {"2": level_of(1.0, a="SUCCEEDED")},
}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", ["format None"]),
        ('{"format"', ["Expecting"]),
        ("[]", ["expected dict"]),
        (json.dumps(STRONG | {"format": 2}), ["format 1", "format 2"]),
        (json.dumps(STRONG | {"total_timesteps": 3}), ["total_timesteps"]),
        (json.dumps(STRONG | {"levels": {"two": level_of(1.0)}}), ["'two'"]),
        (json.dumps(STRONG | {"levels": {"2": {}}}), ["levels"]),
    ],
)
def test_strong_scaling_that_cannot_be_read_is_named_before_anything_is_measured(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    paths, experiment = RunPaths(tmp_path / "run"), load(write_experiment(tmp_path, WORK))
    paths.bench.mkdir(parents=True)
    (paths.bench / "strong.json").write_text(content)
    setup: Any = None
    options: Any = SimpleNamespace(strong_seconds=1.0, seed=0)
    with pytest.raises(UsageError) as raised:
        strong_scaling.run(experiment, options, paths, [1], setup, 1000.0)
    expected = [str(paths.bench / "strong.json"), "Remove the file", *words]
    assert all(word in str(raised.value) for word in expected), raised.value


def test_a_measured_training_starts_with_random_weights_whatever_the_job_starts_from(
    tmp_path: Path,
) -> None:
    jobs = write_experiment(
        tmp_path,
        WORK | {"init": "policy.zip"},
        WORK | {"name": "second", "init": "job:balancer"},
    )
    for job in load(jobs).jobs:
        assert job.spec.init is not None
        alone = workload.training_alone(job.spec, 640)
        assert (alone.init, alone.init_sha256, alone.after) == (None, None, ())


def test_a_search_has_no_job_to_measure(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK | {"eval_episodes": 10})
    space = "[search.space]\n'model.geom.pole.density' = { low = 400, high = 900 }\n"
    search = f"[search]\nobjective = 'eval_mean'\ntrials = 4\n{space}"
    jobs.write_text(f"{jobs.read_text()}\n{search}")
    with pytest.raises(UsageError, match=r"jobs\.toml: a search makes its jobs as it runs"):
        workload.pick(load(jobs), None)
