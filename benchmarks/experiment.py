"""What running experiments costs: the figures of "What it costs" in docs/results.md,
printed as one table.

    python -m benchmarks.experiment [--repeats 5] [--only supervisor,startup]

Everything runs through the real program. A and B of a ratio are measured interleaved in the same
run, now A first and now B, and given as medians with their range. Run it on an otherwise idle
machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

import orchestrator
from benchmarks.harness import (
    ORCHESTRATOR,
    ROOT,
    Line,
    at_least,
    at_most,
    both_ways,
    cpu_share,
    print_table,
)
from orchestrator.analysis import run_reader
from orchestrator.core.job import Job, Resources
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.executors.executor import ExecutorSettings
from orchestrator.executors.local import LocalExecutor
from orchestrator.executors.processes import Processes
from orchestrator.ledger.rows import DeclaredJob
from orchestrator.machine import topology
from orchestrator.server.examiner import Examiner
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.start_policies import NoPolicies
from orchestrator.server.supervisor import Supervisor

TINY = Resources(cores=1, threads=1, memory_mib=1, gpus=0, timeout_s=60, stall_timeout_s=60)
START_LIMITS: Mapping[str, tuple[float, float | None]] = {"fast": (1.1, 280), "sb3": (1.9, None)}
"""Learner → seconds from exec to the first environment step, resident MiB."""


def job_file(
    folder: Path, robot: str, *, timesteps: int, copies: int = 1, learner: str = "auto"
) -> Path:
    """A job file of ``copies`` jobs that are the same to the bit: each trains ``robot`` for
    ``timesteps`` env_steps."""
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
        lines += [
            "[[jobs]]",
            f'name = "{robot}-{copy}"',
            f"xml = {json.dumps(str(ROOT / 'mjcf' / f'{robot}.xml'))}",
        ]
    path = folder / "benchmark.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


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
                record = json.loads(
                    (result.results[0].job_dir / "attempts/0/exit.json").read_text()
                )
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
        lines.append(
            at_most(f"resident MiB of a worker, learner {learner}", resident[learner], mib)
        )
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
                subprocess.run(
                    [*ORCHESTRATOR, *arguments], capture_output=True, cwd=ROOT, check=False
                )
                times[what].append(time.perf_counter() - begun)
            times["launch"].append(first_launch_s(good, folder / f"launch-{number}"))
    lines = [
        at_most(f"{what} answers, seconds", times[what], limit)
        for what, (_, limit) in commands.items()
    ]
    what = "`run` typed to first worker launched, seconds (preflight included)"
    return [*lines, at_most(what, times["launch"], 1.0)]


def first_launch_s(path: Path, run_dir: Path) -> float:
    command = [*ORCHESTRATOR, "run", str(path), "--run-dir", str(run_dir), "--json"]
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
    """CPU and memory of the supervisor and of its orphan reaper, while every slot is busy and other
    jobs wait."""
    with tempfile.TemporaryDirectory() as name, terminal() as out:
        path = job_file(
            Path(name), "runner", timesteps=10_000_000, copies=10 + topology.detect().capacity
        )
        command = [
            *ORCHESTRATOR,
            "run",
            str(path),
            "--run-dir",
            str(Path(name) / "run"),
            "--grace",
            "5",
        ]
        with subprocess.Popen(
            command, stdout=out, cwd=ROOT, env={**os.environ, "TERM": "xterm"}
        ) as process:
            time.sleep(8)  # past start-up
            client = psutil.Process(process.pid)
            (supervisor,) = [
                child for child in client.children() if "orchestrator.server" in child.cmdline()
            ]
            (reaper,) = [
                child
                for child in supervisor.children()
                if any("orphan_reaper" in part for part in child.cmdline())
            ]
            share = cpu_share([client, supervisor, reaper], 30)
            supervisor_mib = supervisor.memory_info().rss / 2**20
            reaper_mib = reaper.memory_info().rss / 2**20
            process.terminate()
    return [
        Line(
            what="supervisor, client and orphan reaper, all slots busy, table in a terminal: share of one core",
            measured=f"{share:.2%}",
            target="< 1 %",
            good=share < 0.01,
            values=[share],
        ),
        Line(
            what=f"supervisor resident, MiB (orphan reaper: {reaper_mib:.0f})",
            measured=f"{supervisor_mib:.0f}",
            target="< 80",
            good=supervisor_mib < 80,
            values=[supervisor_mib],
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


def instant_jobs(repeats: int) -> list[Line]:
    """1,000 jobs whose worker is /bin/true: the cost of ledger, supervisor and process start."""
    rates = []
    for _ in range(repeats):
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            paths = RunPaths(Path(name))
            ledger = ServerLedger.create(paths.ledger)
            jobs = enumerate(tiny_jobs(1000))
            ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in jobs)
            ledger.commit()
            here = topology.detect()
            executor = LocalExecutor(
                ExecutorSettings(machine=here, sees_neighbours=True, name="benchmark"),
                Processes(worker_command=("/bin/true",)),
            )
            supervisor = Supervisor(
                paths=paths,
                ledger=ledger,
                executor=executor,
                examiner=Examiner(processes=0),
                policies=NoPolicies(),
                holder="benchmark",
            )
            supervisor.jobs.load(ledger.jobs())
            supervisor.go()
            ledger.close()
        rates.append(1000 / (time.perf_counter() - begun))
    what = "instant jobs through ledger and supervisor, jobs/s"
    return [at_least(what, rates, 150)]


def tiny_jobs(count: int) -> Iterator[Job]:
    for number in range(count):
        job_id = f"robot-{number:06}-s0"
        spec = WorkerSpec(
            job_id=job_id,
            name=f"robot-{number:06}",
            seed=0,
            algo="ppo",
            learner="auto",
            total_timesteps=1_000_000,
            n_envs=8,
            normalize=True,
            checkpoint_every=300_000,
            eval_episodes=10,
            env="none",
        )
        yield Job(
            job_id=job_id,
            where=f"jobs[{number}]",
            spec=spec,
            resources=TINY,
            max_retries=0,
            xml_source=None,
        )


PARTS: dict[str, Callable[[int], list[Line]]] = {
    "supervisor": supervisor_load,
    "instant": instant_jobs,
    "answers": answers,
    "startup": startup,
}


def main() -> None:
    print_table(__doc__, PARTS)


if __name__ == "__main__":
    main()
