"""The command ``bench``: every measurement is recorded, nothing is lost or left running."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import BALANCER, PATIENCE_S, write_experiment
from measurement_helpers import machine_with

from orchestrator.core.errors import UsageError
from orchestrator.features.bench import (
    baselines,
    benchmark,
    plan,
    workload,
)
from orchestrator.features.bench.measurement import MeasurementLog
from orchestrator.features.bench.plan import BenchOptions
from orchestrator.jobfile import load

pytestmark = pytest.mark.nightly

WORK = {"name": "balancer", "xml": BALANCER, "task": "balance"}
QUICK = ("--repeats", "1", "--seconds", "0.2", "--run-dir", "bench")
MEASURED = (*QUICK, "--levels", "1,2", "--arms", "threads", "--strong-seconds", "1000")
FIGURES = {
    *(
        "job",
        "learner",
        "env_steps",
        "updates",
        "iterations",
        "wall_s",
        "env_s",
        "policy_s",
        "gae_s",
        "backward_s",
    ),
    *(
        "optimizer_s",
        "rest_s",
        "cpu_s",
        "run_delay_s",
        "voluntary_switches",
        "involuntary_switches",
        "throttled_s",
    ),
    *("rss_mib", "n_threads", "import_s", "first_step_s", "cpus", "allreduce_s"),
}


def records(run_dir: Path) -> list[dict[str, Any]]:
    return MeasurementLog(run_dir / "bench/cells.jsonl").read()


def key(record: dict[str, Any]) -> tuple[str, int, int]:
    return record["arm"], record["level"], record["repeat"]


class Bench:
    """A running ``bench``, in a session of its own."""

    def __init__(self, *arguments: str | Path, cwd: Path) -> None:
        self.popen = commands.start(
            commands.command("bench", *arguments), cwd=cwd, start_new_session=True
        )

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate()

    def until(self, words: str) -> str:
        """Read standard error up to the line with ``words``."""
        assert self.popen.stderr is not None
        lines = []
        for line in self.popen.stderr:
            lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"no line with {words!r}: {lines}")


def token_below(pid: int) -> bytes:
    """The token of all processes that the process with ``pid`` has started."""

    def look() -> bytes | None:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError, KeyError):
                return commands.token_of(int(child))
        return None

    token: bytes = commands.wait_until(look, "a process of a measurement")
    return token


BUSY_PATIENCE_S = 240.0
"""What a benchmark does before it measures takes minutes where others keep the processors busy."""


def await_end_of(*tokens: bytes) -> None:
    """Wait until no process has one of the tokens; who is left otherwise is in the error."""

    def left() -> list[str]:
        pids = {pid for token in tokens for pid in commands.carriers(token)}
        return [f"{pid}: {commands.command_of(pid)}" for pid in sorted(pids)]

    try:
        commands.wait_until(lambda: not left(), "their end")
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *left()])) from None


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished ``bench`` of two jobs."""
    folder = tmp_path_factory.mktemp("measured")
    jobs = write_experiment(folder, WORK, {**WORK, "name": "long", "total_timesteps": 2048})
    done = commands.give("bench", jobs, *MEASURED, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_measurements_are_recorded_with_their_figures(measured: Path) -> None:
    measurements = records(measured / "bench")
    assert {key(record) for record in measurements} == {("threads", level, 0) for level in (1, 2)}
    for record in measurements:
        assert record["status"] in ("ok", "cut"), record["message"]
        assert record["throughput"] > 0
        assert len(record["processes"]) == record["level"]
        assert all(process.keys() == FIGURES for process in record["processes"])
    document = json.loads((measured / "bench/bench/plan.json").read_text())
    assert document["jobs"] == ["balancer-s0"]
    assert document["levels"] == [1, 2]
    assert sorted(map(tuple, document["order"])) == sorted(map(key, measurements))
    assert not (measured / "bench/bench/work").exists()


def test_strong_scaling_gives_makespans_bounds_and_a_schedule(measured: Path) -> None:
    strong = json.loads((measured / "bench/bench/strong.json").read_text())
    assert strong["part"] == 1.0
    assert strong["levels"].keys() == {"1", "2"}
    for entry in strong["levels"].values():
        steps = {job["job_id"]: job["env_steps"] for job in entry["jobs"]}
        assert steps == {"balancer-s0": 512, "long-s0": 2048}
        assert entry["makespan_s"] == max(job["ended_s"] for job in entry["jobs"])
        assert entry["lower_bound_s"] > 0
    alone = sorted(strong["levels"]["1"]["jobs"], key=lambda job: job["started_s"])
    assert alone[0]["ended_s"] <= alone[1]["started_s"] + 0.1


def test_a_second_call_adds_the_missing_measurements(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "bench/bench/cells.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:50])  # killed while it wrote the last one
    again = commands.give("bench", measured / "jobs.toml", *MEASURED, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "1 of 2 measurements are already finished" in again.stderr
    assert path.read_bytes().startswith(b"".join(lines[:-1]))
    assert list(map(key, records(tmp_path / "bench"))) == list(
        map(key, records(measured / "bench"))
    )


def test_a_benchmark_is_not_continued_with_other_settings(measured: Path) -> None:
    path = measured / "bench/bench/plan.json"
    document = json.loads(path.read_text())
    assert plan.begin(path, document) == document
    with pytest.raises(
        UsageError,
        match=r"other settings: seconds was 0\.2, is 0\.3; machine\.cpu_quota was .*, is 9\.",
    ):
        plan.begin(
            path, {**document, "seconds": 0.3, "machine": {**document["machine"], "cpu_quota": 9}}
        )


def test_ctrl_c_keeps_what_is_finished_and_leaves_no_process(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    options = (
        *QUICK,
        "--levels",
        "1",
        "--arms",
        "threads,pool-spawn-pinned",
        "--repeats",
        "50",
        "--no-strong",
    )
    with Bench(jobs, *options, cwd=tmp_path) as bench:
        bench.until("[1/")
        token = token_below(bench.popen.pid)
        os.killpg(bench.popen.pid, signal.SIGINT)
        _, stderr = bench.popen.communicate(timeout=PATIENCE_S)
        assert bench.popen.returncode == 130, stderr
        assert "Traceback" not in stderr
    assert commands.carriers(token) == []
    assert len(records(tmp_path / "bench")) >= 1
    assert not (tmp_path / "bench/bench/work").exists()


def test_no_process_outlives_a_benchmark_that_was_killed(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    options = (
        *QUICK,
        "--seconds",
        "1",
        "--levels",
        "2",
        "--arms",
        "pool-spawn-pinned",
        "--no-strong",
    )
    with Bench(jobs, *options, cwd=tmp_path) as bench:
        folder = tmp_path / "bench/bench/work"
        commands.wait_until(
            lambda: list(folder.glob("*-2-0/**/timings.csv")),
            "a measurement that trains",
            BUSY_PATIENCE_S,
        )
        token = token_below(bench.popen.pid)
        assert len(commands.carriers(token)) >= 3
        bench.popen.kill()
        bench.popen.wait()
        await_end_of(token)


def test_no_child_of_a_supervised_training_outlives_a_killed_benchmark(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, commands.odd("odd", "have_children"))
    with Bench(jobs, *QUICK, "--levels", "1", "--arms", "pinned", cwd=tmp_path) as bench:
        folder = tmp_path / "bench/bench/work"
        commands.wait_until(
            lambda: any("children" in path.read_text() for path in folder.glob("**/worker.log")),
            "a worker with children",
            BUSY_PATIENCE_S,
        )
        tokens = {commands.token_of(pid) for pid in commands.mentioning(folder)}
        assert len(tokens) == 2, "the benchmark's, and the supervisor's own"
        assert sum(len(commands.carriers(token)) for token in tokens) >= 4
        bench.popen.kill()
        bench.popen.wait()
        await_end_of(*tokens)


def test_wrong_usage_is_answered_with_the_valid_values(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    calls: list[tuple[Callable[[], object], list[str]]] = [
        (
            lambda: baselines.parse_arms("pinned,ray"),
            ["unknown: ray", "valid: pinned, threads, default, pool-fork"],
        ),
        (lambda: plan.levels("two", machine_with(2), 1), ["--levels two", "auto"]),
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


@pytest.mark.parametrize(
    ("options", "strong_seconds"),
    [
        ((), 120.0),
        (("--no-strong",), 0.0),
        (("--levels", "1,2", "--arms", "threads"), 0.0),
        (("--arms", "threads", "--strong"), 120.0),
        (("--levels", "1", "--strong-seconds", "30"), 30.0),
    ],
)
def test_a_part_is_measured_without_the_whole_job_file_unless_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], strong_seconds: float
) -> None:
    asked: list[BenchOptions] = []

    def run(_experiment: object, given: BenchOptions, _tell: object) -> benchmark.BenchResult:
        asked.append(given)
        return benchmark.BenchResult(run_dir=tmp_path, exit_code=0)

    monkeypatch.setattr(benchmark, "run", run)
    assert (
        commands.invoke(
            "bench", write_experiment(tmp_path, WORK), *options, cwd=tmp_path
        ).returncode
        == 0
    )
    assert asked[0].strong_seconds == strong_seconds
    assert bool(asked[0].why_no_strong) == (strong_seconds == 0.0)


def test_the_command_refuses_wrong_usage_and_writes_nothing(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    done = commands.invoke("bench", jobs, "--job", "walker", "--run-dir", "bench", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "--job walker" in done.stderr
    assert not (tmp_path / "bench/bench/plan.json").exists()


def test_the_run_directory_of_an_experiment_is_refused(tmp_path: Path) -> None:
    jobs = write_experiment(tmp_path, WORK)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/ledger.sqlite3").touch()
    with pytest.raises(UsageError, match="holds an experiment"):
        benchmark.run(load(jobs), BenchOptions(run_dir=tmp_path / "run"), lambda _: None)
