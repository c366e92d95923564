"""What ``bench`` decides and computes: levels, order, measurement window, disturbances, bounds,
packings."""

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
    drift,
    forecast,
    measurement_window,
    plan,
    runner,
    strong_scaling,
    tune,
    weak_scaling,
    workload,
)
from orchestrator.features.bench.baselines import BASELINES
from orchestrator.features.bench.measured_processes import MeasuredProcesses
from orchestrator.features.bench.measurement import Measurement, MeasurementLog, with_disturbance
from orchestrator.features.bench.measurement_window import TimeSeries
from orchestrator.features.bench.strong_scaling import Level, StrongScaling
from orchestrator.jobfile import load

WORK = {"name": "balancer", "xml": BALANCER, "task": "balance"}


def test_environments_differ_in_the_thread_budget_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    users_own = {
        "OMP_NUM_THREADS": "7",
        "KMP_AFFINITY": "compact",
        "ORCHESTRATOR_NO_TIMINGS": "1",
        "HOME": "/home/me",
    }
    monkeypatch.setattr(os, "environ", users_own)
    free = baselines.environment(BASELINES["default"], 3, token="t")
    limited = baselines.environment(BASELINES["threads"], 3, token="t")
    assert not {*THREAD_VARIABLES, "KMP_AFFINITY", "ORCHESTRATOR_NO_TIMINGS"} & free.keys()
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


def record(status: str, disturbance: str = "", repeat: int = 0) -> dict[str, Any]:
    key = {"arm": "pinned", "level": 1, "repeat": repeat}
    return {**key, "status": status, "throughput": 5.0, "message": "m", "disturbance": disturbance}


def test_a_disturbed_measurement_is_marked_and_taken_again_a_bounded_number_of_times(
    tmp_path: Path,
) -> None:
    log, measurement = (
        MeasurementLog(tmp_path / "cells.jsonl"),
        Measurement(baseline="pinned", level=1, repeat=0),
    )
    marked = with_disturbance(record("ok", "a hog"), again=True)
    assert (marked["status"], marked["throughput"], marked["message"]) == (
        "disturbed",
        5.0,
        "a hog",
    )
    for _ in range(2):
        log.append(marked)
        assert log.missing([measurement], 2) == [measurement]
    log.append(marked)
    assert log.missing([measurement], 2) == []
    log.append(record("failed", repeat=1))
    assert log.missing([Measurement(baseline="pinned", level=1, repeat=1)], 2) != []


def test_a_measurement_that_failed_under_a_disturbance_waits_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = {
        "order": [["pinned", 1, 0]],
        "calibration": {"cell_s": 1.0, "throughput": 5.0},
        "work": {"cores": 1},
        "machine": {"capacity": 1},
        **{"seconds": 1.0, "reference_s": 1.0},
    }
    calls = iter([record("failed", "a hog")])  # a second call ends the test with StopIteration
    monkeypatch.setattr(weak_scaling, "measure", lambda *_, **__: next(calls))
    monkeypatch.setattr(plan, "begin", lambda _path, document: document)
    setup: Any = SimpleNamespace(tell=lambda _: None)
    log = MeasurementLog(tmp_path / "cells.jsonl")
    done = weak_scaling.run(new, tmp_path / "plan.json", log, None, setup, retakes=2)  # type: ignore[arg-type]
    assert done.failed == 1


def test_on_a_busy_machine_a_quarter_is_taken_again_and_the_rest_waits_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = {
        "order": [["pinned", 1, repeat] for repeat in range(8)],
        "calibration": {"cell_s": 1.0, "throughput": 5.0},
        "work": {"cores": 1},
        "machine": {"capacity": 1},
        **{"seconds": 1.0, "reference_s": 1.0},
    }
    taken: list[int] = []

    def measure(measurement: Measurement, *_: Any, **__: Any) -> dict[str, Any]:
        taken.append(measurement.repeat)
        return record("ok", "a hog", repeat=measurement.repeat)

    monkeypatch.setattr(weak_scaling, "measure", measure)
    monkeypatch.setattr(plan, "begin", lambda _path, document: document)
    told: list[str] = []
    setup: Any = SimpleNamespace(tell=told.append)
    log = MeasurementLog(tmp_path / "cells.jsonl")
    done = weak_scaling.run(new, tmp_path / "plan.json", log, None, setup, retakes=2)  # type: ignore[arg-type]
    assert (len(taken), done.failed) == (10, 0)
    assert "8 disturbed measurements not taken again" in told[-1]


def test_what_a_benchmark_does_is_told_with_the_time_of_each_part() -> None:
    cells = tuple(forecast.cell_s(level, seconds=8.0, cores=1, capacity=2) for level in (1, 2, 4))
    assert cells == (12.5, 12.5, 17.0)
    makespans = forecast.makespans_s((1, 2, 4), jobs=10, work_s=105.0, capacity=2)
    assert makespans == (120.0, 60.0, 60.0)
    told = forecast.Forecast(
        cells_s=cells, seconds=8.0, calibration_s=12.5, retakes=1, makespans_s=makespans
    ).lines()
    assert told == [
        "Takes about 4:54:",
        "  calibration, one process alone: about 0:12",
        "  3 measurements of 8 s, with start and warm-up: about 0:42",
        "  at most 1 of them again if they are disturbed: up to 0:14 more",
        "  makespan of the whole job file, scaled down, 3 times: up to 4:00 (--no-strong leaves it out)",
    ]
    done = forecast.Forecast(
        cells_s=(), seconds=8.0, calibration_s=0.0, retakes=0, why_no_makespan="--no-strong"
    )
    assert done.lines() == [
        "Takes about 0:00:",
        "  the makespan of the whole job file is not measured: --no-strong",
    ]


def test_a_bound_under_a_disturbance_counts_only_when_it_is_not_taken_again() -> None:
    assert with_disturbance(record("cut", "a hog"), again=True)["status"] == "disturbed"
    assert with_disturbance(record("cut", "a hog"), again=True)["throughput"] is None
    assert with_disturbance(record("cut", "a hog"), again=False)["status"] == "cut"
    assert with_disturbance(record("failed", "a hog"), again=False) == record("failed", "a hog")


def test_disturbances_are_seen_in_the_kernels_time_and_in_what_others_use(tmp_path: Path) -> None:
    assert drift.disturbance(1.0, (1.1, 1.0), 0.1) == ""
    assert "30% slower" in drift.disturbance(1.0, (1.0, 1.3), None)
    assert "0.5 cores" in drift.disturbance(1.0, (1.0, 1.0), 0.5)
    stat = (
        "cpu  9 9 9 9 9 9 9 9\ncpu0 100 20 30 999 999 1 2 7 0 0\ncpu1 1 1 1 9 9 1 1 1 0 0\nintr 5\n"
    )
    tick = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(stat)
    one, both = drift.load([0], [], tmp_path), drift.load([0, 1], [], tmp_path)
    assert one is not None
    assert both is not None
    assert (one.busy_s, both.busy_s) == (160 / tick, 166 / tick)
    assert drift.load([0, 2], [], tmp_path) is None
    before = os.sched_getaffinity(0)
    assert drift.kernel_s(sorted(before)) > 0
    assert os.sched_getaffinity(0) == before


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


def test_levels_that_were_measured_completely_are_not_missing(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert strong_scaling.missing_levels(paths, [1, 2]) == [1, 2]
    paths.bench.mkdir()
    (paths.bench / "strong.json").write_text(json.dumps(STRONG))
    assert strong_scaling.missing_levels(paths, [1, 2]) == [1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", ["missing"]),
        ('{"format"', ["Expecting"]),
        ("[]", ["an object"]),
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
    for call in (
        lambda: strong_scaling.missing_levels(paths, [1]),
        lambda: strong_scaling.run(experiment, options, paths, [1], setup, 1000.0),
    ):
        with pytest.raises(UsageError) as raised:
            call()
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


def test_a_search_measures_again_what_could_not_be_measured_and_each_point_once_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = "failed"
    taken: list[Any] = []

    def measured(measurement: Measurement, *_: Any, **__: Any) -> dict[str, Any]:
        taken.append(measurement)
        return record(status)

    monkeypatch.setattr(tune, "measure", measured)
    monkeypatch.setattr(drift, "kernel_s", lambda _: 1.0)
    setup: Any = SimpleNamespace(machine=machine_with(2), cpus=[0, 1], tell=lambda _: None)
    work: Any = SimpleNamespace(
        job=SimpleNamespace(spec=SimpleNamespace(n_envs=1, steps_an_iteration=8)),
        with_settings=lambda **_: None,
    )
    document: dict[str, Any] = {"points": []}
    forecasts: list[int] = []

    def take() -> int:
        taken.clear()
        search = tune._Search(document, work, setup, 1.0)
        forecasts.append(len(search.forecast().cells_s))
        for point in search.points():
            search.measure(point)
        return len(taken)

    packings = len(tune.packings(machine_with(2)))
    assert [take(), take()] == [packings, packings]
    status = "ok"
    assert (whole := take()) > packings
    assert take() == 0
    assert forecasts == [whole, whole, whole, 0]


def test_packings_use_the_cores_by_processes_by_threads_and_with_smt() -> None:
    assert tune.packings(machine_with(1)) == [(1, 1)]
    assert tune.packings(machine_with(4)) == [(4, 1), (2, 2), (1, 4), (2, 1)]
    assert (8, 1) in tune.packings(machine_with(4, siblings=2))
    assert all(processes <= 2 for processes, _ in tune.packings(machine_with(4, quota=2.0)))
    assert tune.packings(machine_with(4, memory_mib=900)) == [(2, 2), (1, 4), (2, 1)]


def test_the_time_of_all_our_processes_is_not_that_of_others(tmp_path: Path) -> None:
    tick = os.sysconf("SC_CLK_TCK")

    def load(busy: int, *ours: int) -> drift.Load | None:
        (tmp_path / "stat").write_text(f"cpu0 {busy} 0 0 0 0 0 0 0 0 0\n")
        for pid, ticks in enumerate(ours):
            (tmp_path / str(pid)).mkdir(exist_ok=True)
            (tmp_path / str(pid) / "stat").write_text(
                f"{pid} (a) b) S {'0 ' * 10}{ticks}{' 0' * 38}\n"
            )
        return drift.load([0], range(len(ours) + 1), tmp_path)  # one of them is gone

    first, last = load(100, 10, 20), load(100 + 9 * tick, 10 + 4 * tick, 20 + 3 * tick)
    assert first is not None
    assert last is not None
    later = drift.Load(busy_s=last.busy_s, own_s=last.own_s, clock_s=first.clock_s + 2.0)
    assert later.others_since(first) == pytest.approx(1.0)
    assert first.others_since(first) is None
