"""What pilots cost: one-second jobs through four of them, and trainings in them against the local
executor.

    python -m benchmarks.slurm [--repeats 3] [--only jobs,makespan]

It starts a Slurm of its own on this machine, with two nodes, and needs Debian's packages slurm-wlm
and munge. The part ``jobs`` sends 1,000 processes that sleep for a second through supervisor and
ledger. In ``makespan``, pilots and the local executor have the same cores; see
:mod:`benchmarks.makespan` for the trainings.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from benchmarks.experiment import tiny_jobs
from benchmarks.harness import Line, at_least, at_most, both_ways, cpu_timed, print_table
from benchmarks.makespan import JOBS, STEPS, job_file, makespan_s
from benchmarks.simulated_cluster import entered
from benchmarks.slurm_cluster import CPUS, slurm_at_hand
from orchestrator.core.paths import RunPaths
from orchestrator.executors.base import BackendSettings
from orchestrator.features.slurm import submission
from orchestrator.features.slurm.command_runner import SlurmCommand
from orchestrator.features.slurm.slurm_backend import SlurmBackend
from orchestrator.features.slurm.slurm_settings import SlurmSettings
from orchestrator.machine import topology
from orchestrator.supervisor.events import SilentReporter
from orchestrator.supervisor.supervisor import Supervisor

SECONDS_JOBS = 1000
SECONDS = SlurmSettings(array=4, cpus_per_task=2, mem_mib=1000)
AT_ONCE = 8
LEAST_BETWEEN_S = 10.0
MOST_OF_LOCAL = 1.1


class CountedCommand(SlurmCommand):
    """Keeps when each program was called."""

    calls: dict[str, list[float]]

    def __init__(self, *command: str) -> None:
        self.calls.setdefault(command[0], []).append(time.monotonic())
        super().__init__(*command)


@contextlib.contextmanager
def counted() -> Iterator[dict[str, list[float]]]:
    """Program → when it was called in the block."""
    CountedCommand.calls = {}
    with mock.patch.object(submission, "SlurmCommand", CountedCommand):
        yield CountedCommand.calls


def seconds_jobs(root: Path) -> tuple[float, float]:
    """Jobs per second, and CPU milliseconds of the supervisor for each."""
    paths = RunPaths(root)
    paths.root.mkdir()
    ledger = entered(paths, tiny_jobs(SECONDS_JOBS))
    settings = BackendSettings(
        machine=topology.detect(),
        run_dir=root,
        final_run_dir=root,
        name="seconds",
        tables={"slurm": SECONDS},
    )
    with contextlib.closing(SlurmBackend(settings)) as backend:
        backend.executor.worker_command = ("sh", "-c", "sleep 1")
        backend.ready()
        supervisor = Supervisor(
            paths=paths,
            rows=ledger.jobs(),
            ledger=ledger,
            executor=backend.executor,
            slots=backend.slots,
            reporter=SilentReporter(),
            exit_record_expected=False,
            available_memory_mib=backend.available_memory_mib,
        )
        cpu_s, states = cpu_timed(supervisor.run)
    if any(state.name != "SUCCEEDED" for state in states.values()):
        raise SystemExit("not every job has succeeded")
    rows = ledger.summary()
    ledger.close()
    wall_s = max(row["ended_at"] or 0.0 for row in rows) - min(
        row["started_at"] or 0.0 for row in rows
    )
    return SECONDS_JOBS / wall_s, 1000 * cpu_s / SECONDS_JOBS


def jobs(repeats: int) -> list[Line]:
    rates = []
    costs = []
    submissions = []
    between_s = []
    with slurm_at_hand(), tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        for number in range(repeats):
            with counted() as calls:
                rate, cost = seconds_jobs(Path(folder, str(number)))
            rates.append(rate)
            costs.append(cost)
            submissions.append(len(calls["sbatch"]))
            between_s += [later - earlier for earlier, later in itertools.pairwise(calls["squeue"])]
    what = f"{SECONDS_JOBS:,} one-second jobs through {SECONDS.array} pilots, {AT_ONCE} at once"
    return [
        at_least(f"{what}: jobs/s", rates),
        at_most("calls of sbatch", submissions, 1),
        at_least(
            "least seconds between calls of squeue",
            [min(between_s, default=math.inf)],
            LEAST_BETWEEN_S,
        ),
        at_most("CPU of the supervisor, ms a job", costs),
    ]


def makespan(repeats: int) -> list[Line]:
    each = min(CPUS, max(1, topology.detect().capacity // 2))
    seconds_by: dict[str, list[float]] = {"local": [], "slurm": []}
    with slurm_at_hand(), tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        file = job_file(Path(folder))
        pilots = f'\n[slurm]\narray = 2\ncpus_per_task = {each}\nmem = "{2 * each} GiB"\n'
        file.write_text(f"{file.read_text(encoding='utf-8')}{pilots}", encoding="utf-8")
        for number in range(repeats):
            for name in both_ways(number, "local", "slurm"):
                options = ("--executor", name, "--max-parallel", str(2 * each))
                seconds_by[name].append(makespan_s(file, *options))
    ratios = [
        slurm / local for slurm, local in zip(seconds_by["slurm"], seconds_by["local"], strict=True)
    ]
    what = f"{JOBS} trainings of Ant-v5, {STEPS:,} env_steps, {2 * each} at once: makespan"
    return [
        at_most(f"{what} of --executor slurm / of --executor local", ratios, MOST_OF_LOCAL),
        *(at_least(f"seconds by {name}", values) for name, values in seconds_by.items()),
    ]


PARTS = {"jobs": jobs, "makespan": makespan}

if __name__ == "__main__":
    try:
        print_table(__doc__, PARTS)
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from error
