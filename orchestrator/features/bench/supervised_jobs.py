"""``python -m orchestrator.features.bench.supervised_jobs REQUEST``: run jobs under the real supervisor.

It has a process of its own because the benchmark stops it midway, and because the cost of the
supervisor must count for the measurements that use it, and for no others.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.client.run_jobs import run_jobs
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.job import Job
from orchestrator.core.processes.environment_variables import TOKEN_VARIABLE
from orchestrator.server.settings import RunSettings

BENCHMARK = "benchmark"
"""Name of what holds CPUs, for other runs on this machine."""
GRACE_S = 5.0
"""Time that workers have to end after SIGTERM to the process, before they are killed."""


def write_request(
    path: Path, jobs: Sequence[Job], *, run_dir: Path, max_parallel: int
) -> list[str]:
    """Write a request to ``path``. Return the command that runs ``jobs`` without retries."""
    settings = RunSettings(
        client_pid=0, name=BENCHMARK, is_listed=False, max_parallel=max_parallel, grace_s=GRACE_S
    )
    without_retries = [dataclasses.replace(job, max_retries=0) for job in jobs]
    path.write_bytes(pickle.dumps((without_retries, run_dir, settings)))
    return [sys.executable, "-m", "orchestrator.features.bench.supervised_jobs", str(path)]


def main(path: Path) -> int:
    # The benchmark's orphan reaper kills what carries its token: this process, but not the
    # supervisor, which then kills its workers.
    os.environ.pop(TOKEN_VARIABLE, None)
    jobs, run_dir, settings = pickle.loads(path.read_bytes())
    try:
        return run_jobs(jobs, run_dir, settings).exit_code
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
