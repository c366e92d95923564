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

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.job import Job
from orchestrator.core.processes.environment_variables import TOKEN_VARIABLE
from orchestrator.experiment import session
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.jobfile import Experiment
from orchestrator.supervisor.events import SilentReporter

BENCHMARK = "benchmark"
"""Name of what holds CPUs, for other runs on this machine."""
GRACE_S = 5.0
"""Time that workers have to end after SIGTERM to the process, before they are killed."""


def write_request(
    path: Path, jobs: Sequence[Job], *, run_dir: Path, max_parallel: int
) -> list[str]:
    """Write a request to ``path``. Returns the command that runs ``jobs`` without retries."""
    experiment = Experiment(
        name=BENCHMARK,
        max_parallel=max_parallel,
        order="longest-first",
        jobs=tuple(dataclasses.replace(job, max_retries=0) for job in jobs),
        source=str(path),
        base=path.parent,
    )
    path.write_bytes(pickle.dumps((experiment, RunOptions(run_dir=run_dir, grace_s=GRACE_S))))
    return [sys.executable, "-m", "orchestrator.features.bench.supervised_jobs", str(path)]


def main(path: Path) -> int:
    # The benchmark's orphan reaper kills what carries its token: this process, but not this
    # process's own reaper, which then kills the workers.
    os.environ.pop(TOKEN_VARIABLE, None)
    experiment, options = pickle.loads(path.read_bytes())
    try:
        return session.run(experiment, options, SilentReporter()).exit_code
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
