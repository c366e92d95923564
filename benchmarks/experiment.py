"""What running experiments costs: the figures of docs/performance.md, printed as one table.

    python -m benchmarks.experiment [--repeats 5] [--only scaling,startup]

Everything runs through the real program. A and B of a ratio are measured interleaved in the same
run, now A first and now B, and given as medians with their range. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

import orchestrator
from benchmarks.harness import ROOT, Line, at_least, at_most, both_ways, print_table, spread
from orchestrator.analysis import run_reader
from orchestrator.core.job import Job, Pending, Resources
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.fake import Behaviour, FakeExecutor
from orchestrator.executors.local import LocalExecutor
from orchestrator.ledger import JobRow, Ledger
from orchestrator.machine import topology
from orchestrator.machine.cpu_locks import CpuLocks, shared_directory
from orchestrator.machine.slots import SlotPool
from orchestrator.supervisor.events import SilentReporter
from orchestrator.supervisor.supervisor import Supervisor

COMMAND = [sys.executable, "-m", "orchestrator"]
ROBOTS = ("quadruped", "runner")
START_LIMITS: Mapping[str, tuple[float, float | None]] = {"fast": (1.1, 280), "sb3": (1.9, None)}
"""Learner → seconds from exec to the first environment step, resident MiB."""


def job_file(folder: Path, robot: str, *, timesteps: int, copies: int = 1, learner: str = "auto") -> Path:
    """A job file of ``copies`` jobs that are the same to the bit: each trains ``robot`` for ``timesteps`` env_steps."""
    lines = [
        'name = "benchmark"',
        "[defaults]",
        f"total_timesteps = {timesteps}",
        f'learner = "{learner}"',
        "n_envs = 8",
        "eval_episodes = 0",
        "checkpoint_every = 1_000_000_000",
        "[defaults.ppo]",
        "n_steps = 256",
        "batch_size = 256",
    ]
    for copy in range(copies):
        lines += ["[[jobs]]", f'name = "{robot}-{copy}"', f"xml = {json.dumps(str(ROOT / 'mjcf' / f'{robot}.xml'))}"]
    path = folder / "benchmark.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def time_series(run_dir: Path, row: dict[str, Any]) -> tuple[list[float], list[float]]:
    """End and total env_steps of each iteration of a job, without the first two, which are the warm-up."""
    iterations = run_reader.iterations(RunPaths(run_dir).job(row["job_id"]).timings_csv)
    # The first iteration begins with the first environment step, known to some milliseconds.
    now = row["started_at"] + row["first_step_s"]
    ends: list[float] = []
    steps: list[float] = []
    for iteration in iterations:
        now += iteration.wall_s
        ends.append(now)
        steps.append(iteration.env_steps)
    return ends[2:], steps[2:]


def rate_together(run_dir: Path) -> float:
    """env_steps/s summed over the jobs of a run, over the time in which all of them were in steady training."""
    rows = json.loads(RunPaths(run_dir).summary_json.read_text())
    all_series = [time_series(run_dir, row) for row in rows]
    begin, end = max(ends[0] for ends, _ in all_series), min(ends[-1] for ends, _ in all_series)
    assert end - begin > 0.8 * max(ends[-1] - ends[0] for ends, _ in all_series), "the jobs trained at different times"
    return sum(steps_at(end, *one) - steps_at(begin, *one) for one in all_series) / (end - begin)


def steps_at(moment: float, ends: Sequence[float], steps: Sequence[float]) -> float:
    """env_steps done at ``moment``, interpolated linearly within an iteration."""
    after = min(bisect.bisect_left(ends, moment), len(ends) - 1)
    if after == 0:
        return steps[0]
    part = (moment - ends[after - 1]) / (ends[after] - ends[after - 1])
    return steps[after - 1] + part * (steps[after] - steps[after - 1])


def scaling(repeats: int) -> list[Line]:
    """N one-core jobs on N cores against one of them alone."""
    n = topology.detect().capacity
    lines = []
    for robot in ROBOTS:
        ratios, alone_rates = [], []
        for number in range(repeats):
            rates = {}
            for copies in both_ways(number, 1, n):
                with tempfile.TemporaryDirectory() as name:
                    path = job_file(Path(name), robot, timesteps=65_536, copies=copies)
                    assert orchestrator.run(path, run_dir=Path(name) / "run", max_parallel=copies).ok
                    rates[copies] = rate_together(Path(name) / "run")
            alone_rates.append(rates[1])
            ratios.append(rates[n] / (n * rates[1]))
        lines.append(
            at_least(
                f"env_steps/s of {n} jobs on {n} cores / ({n} × the same job alone), {robot}"
                f" (alone: {statistics.median(alone_rates):,.0f}/s)",
                ratios,
                0.97,
            )
        )
    return lines


def startup(repeats: int) -> list[Line]:
    """Time from exec to the first environment step, and memory of a worker, for both learners."""
    first: dict[str, list[float]] = {learner: [] for learner in START_LIMITS}
    imports: dict[str, list[float]] = {learner: [] for learner in START_LIMITS}
    resident: dict[str, list[float]] = {learner: [] for learner in START_LIMITS}
    for number in range(repeats):
        for learner in both_ways(number, *START_LIMITS):
            with tempfile.TemporaryDirectory() as name:
                path = job_file(Path(name), "hopper", timesteps=4 * 2048, learner=learner)
                result = orchestrator.run(path, run_dir=Path(name) / "run", max_parallel=1)
                assert result.results[0].job_dir is not None
                record = json.loads((result.results[0].job_dir / "attempts/0/exit.json").read_text())
                iterations = run_reader.iterations(result.results[0].job_dir / "timings.csv")
                resident[learner].append(max(iteration.rss_mib or 0.0 for iteration in iterations))
            assert record["learner"] == learner
            first[learner].append(record["first_step_s"])
            imports[learner].append(record["import_s"])
    lines = []
    for learner, (first_s, mib) in START_LIMITS.items():
        imports_s = statistics.median(imports[learner])
        what = f"from exec to first env_step, seconds, learner {learner} (imports: {imports_s:.2f})"
        lines.append(at_most(what, first[learner], first_s))
        lines.append(at_most(f"resident MiB of a worker, learner {learner}", resident[learner], mib))
    return lines


def answers(repeats: int) -> list[Line]:
    """Response time of commands, and time until ``run`` has launched its first worker."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = job_file(folder, "hopper", timesteps=2048)
        orchestrator.run(good, run_dir=folder / "done")
        wrong = folder / "wrong.toml"
        wrong.write_text(good.read_text().replace("n_steps", "n_step"))
        commands: dict[str, tuple[list[str], float]] = {
            "--help": (["--help"], 0.4),
            "status": (["status", str(folder / "done")], 0.4),
            "a spec error": (["run", str(wrong)], 0.4),
        }
        times: dict[str, list[float]] = {what: [] for what in (*commands, "launch")}
        for number in range(repeats):
            for what, (arguments, _) in commands.items():
                begun = time.perf_counter()
                subprocess.run([*COMMAND, *arguments], capture_output=True, cwd=ROOT, check=False)
                times[what].append(time.perf_counter() - begun)
            times["launch"].append(first_launch_s(good, folder / f"launch-{number}"))
    lines = [at_most(f"{what} answers, seconds", times[what], limit) for what, (_, limit) in commands.items()]
    what = "`run` typed to first worker launched, seconds (preflight included)"
    return [*lines, at_most(what, times["launch"], 1.0)]


def first_launch_s(path: Path, run_dir: Path) -> float:
    command = [*COMMAND, "run", str(path), "--run-dir", str(run_dir), "--json"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["event"] == "launched":
                elapsed = time.perf_counter() - begun
                break
        else:
            raise RuntimeError("no worker was launched")
        process.stdout.read()
    return elapsed


def supervisor_load(_: int) -> list[Line]:
    """CPU and memory of the supervisor and of its orphan reaper, while every slot is busy and other jobs wait."""
    with tempfile.TemporaryDirectory() as name, terminal() as out:
        path = job_file(Path(name), "runner", timesteps=10_000_000, copies=10 + topology.detect().capacity)
        command = [*COMMAND, "run", str(path), "--run-dir", str(Path(name) / "run"), "--grace", "5"]
        with subprocess.Popen(command, stdout=out, cwd=ROOT, env={**os.environ, "TERM": "xterm"}) as process:
            time.sleep(8)  # past start-up
            watched = psutil.Process(process.pid)
            reapers = [
                child for child in watched.children() if any("orphan_reaper" in part for part in child.cmdline())
            ]
            assert len(reapers) == 1
            before = sum(cpu_seconds(one) for one in [watched, *reapers])
            begun = time.perf_counter()
            time.sleep(30)
            elapsed = time.perf_counter() - begun
            share = (sum(cpu_seconds(one) for one in [watched, *reapers]) - before) / elapsed
            mib = [one.memory_info().rss / 2**20 for one in [watched, *reapers]]
            process.terminate()
    return [
        Line(
            what="supervisor and orphan reaper, all slots busy, table in a terminal: share of one core",
            measured=f"{share:.2%}",
            target="< 1 %",
            good=share < 0.01,
            values=[share],
        ),
        Line(
            what=f"supervisor resident, MiB (orphan reaper: {sum(mib[1:]):.0f})",
            measured=f"{mib[0]:.0f}",
            target="< 80",
            good=mib[0] < 80,
            values=mib[:1],
        ),
    ]


@contextlib.contextmanager
def terminal() -> Iterator[int]:
    """A terminal of 120 × 40 whose output is read."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def look() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while os.read(ours, 65536):
                pass

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def instant_jobs(repeats: int) -> list[Line]:
    """1,000 jobs whose worker is /bin/true: the cost of ledger, supervisor and process start."""
    rates = []
    for _ in range(repeats):
        begun = time.perf_counter()
        supervise(1000, lambda: LocalExecutor(worker_command=("/bin/true",)))
        rates.append(1000 / (time.perf_counter() - begun))
    what = "instant jobs through ledger and supervisor, jobs/s"
    return [at_least(what, rates, 150)]


def many_pending(repeats: int) -> list[Line]:
    """CPU per event with 10,000 jobs pending against 1,000, over the first 500 ends."""
    ratios = []
    for number in range(repeats):
        cost = {count: seconds_for_500(count) for count in both_ways(number, 1_000, 10_000)}
        ratios.append(cost[10_000] / cost[1_000])
    what = "supervisor CPU per event, 10,000 pending / 1,000 pending"
    return [at_most(what, ratios, 1.2)]


def seconds_for_500(count: int) -> float:
    """CPU seconds of the supervisor's loop until 500 jobs have ended, without its start."""
    marks: list[float] = []

    def behave(launch: Any) -> Behaviour:
        number = int(launch.job_id.split("-")[1])
        if number in (0, 500):
            marks.append(time.process_time())
        if number == 500:
            supervisors[0].request_stop("enough")
        return Behaviour(after_s=1.0)

    supervisors: list[Supervisor] = []
    supervise(count, lambda: FakeExecutor(behave=behave), supervisors)
    return marks[1] - marks[0]


def supervise(count: int, make: Callable[[], Any], made: list[Supervisor] | None = None) -> None:
    """Run ``count`` jobs through a supervisor with the executor that ``make`` returns."""
    with tempfile.TemporaryDirectory() as name:
        paths = RunPaths(Path(name))
        ledger = Ledger.create(paths.ledger)
        jobs = [tiny_job(number) for number in range(count)]
        ledger.put_jobs((number, job, None) for number, job in enumerate(jobs))
        ledger.commit()
        executor = make()
        rows = [
            JobRow(
                job_id=job.job_id,
                declared=job,
                fingerprint=job.spec.fingerprint(),
                robot_hash=None,
                state=Pending(),
                attempts=0,
            )
            for job in jobs
        ]
        here = topology.detect()
        slots = SlotPool(here, locks=CpuLocks(shared_directory(), (cpu.index for cpu in here.cpus)))
        supervisor = Supervisor(
            paths=paths,
            rows=rows,
            ledger=ledger,
            executor=executor,
            slots=slots,
            reporter=SilentReporter(),
            exit_record_expected=False,
            now=executor.now if isinstance(executor, FakeExecutor) else time.monotonic,
        )
        if made is not None:
            made.append(supervisor)
        supervisor.run()
        ledger.close()


def tiny_job(number: int) -> Job:
    spec = WorkerSpec(
        job_id=f"job-{number}",
        name=f"job-{number}",
        seed=0,
        algo="ppo",
        learner="auto",
        total_timesteps=1,
        n_envs=1,
        normalize=False,
        checkpoint_every=1,
        eval_episodes=0,
        env="none",
    )
    resources = Resources(cores=1, threads=1, memory_mib=1, gpus=0, timeout_s=60, stall_timeout_s=60)
    return Job(job_id=spec.job_id, where="", spec=spec, resources=resources, max_retries=0, xml_source=None)


def timings_cost(repeats: int) -> list[Line]:
    """Throughput with timings divided by that without."""
    from orchestrator.worker.training.timings import OFF_VARIABLE  # imports what a worker imports

    ratios = []
    for number in range(repeats):
        rates = {}
        for off in both_ways(number, "1", ""):
            os.environ[OFF_VARIABLE] = off
            try:
                with tempfile.TemporaryDirectory() as name:
                    path = job_file(Path(name), "runner", timesteps=98_304)
                    result = orchestrator.run(path, run_dir=Path(name) / "run", max_parallel=1)
                    assert result.results[0].job_dir is not None
                    record = json.loads((result.results[0].job_dir / "attempts/0/exit.json").read_text())
                    rates[off] = 98_304 / (record["wall_s"] - record["first_step_s"] - record["checkpoint_s"])
            finally:
                del os.environ[OFF_VARIABLE]
        ratios.append(1 - rates[""] / rates["1"])
    good = statistics.median(ratios) < 0.01
    return [
        Line(what="throughput that recording timings costs", measured=spread(ratios, "+.1%"), target="< 1 %", good=good)
    ]


PARTS: dict[str, Callable[[int], list[Line]]] = {
    "scaling": scaling,
    "supervisor": supervisor_load,
    "instant": instant_jobs,
    "pending": many_pending,
    "answers": answers,
    "startup": startup,
    "timings": timings_cost,
}


def main() -> None:
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
