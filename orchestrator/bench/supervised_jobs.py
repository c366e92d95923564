"""``python -m orchestrator.bench.supervised_jobs REQUEST.json``: run jobs under the real supervisor.

It has a process of its own because the benchmark stops it midway, and because the cost of the supervisor must count
for the measurements that use it, and for no others. :func:`write_request` writes the request.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.environment import TOKEN_VARIABLE
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.job import Job, Resources
from orchestrator.core.worker_spec import WorkerSpec


def write_request(path: Path, jobs: Sequence[Job], *, run_dir: Path, max_parallel: int, grace_s: float) -> list[str]:
    """Write a request to ``path``. Returns the command that runs ``jobs``.

    :param grace_s: time that workers have to end after SIGTERM to the process.
    """
    request = {
        "run_dir": str(run_dir),
        "max_parallel": max_parallel,
        "grace_s": grace_s,
        "jobs": [
            {
                "spec": json.loads(job.spec.to_json()),
                "resources": dataclasses.asdict(job.resources),
                "xml_source": None if job.xml_source is None else str(job.xml_source),
            }
            for job in jobs
        ],
    }
    path.write_text(json.dumps(request), encoding="utf-8")
    return [sys.executable, "-m", "orchestrator.bench.supervised_jobs", str(path)]


def main(arguments: Sequence[str]) -> int:
    from orchestrator.experiment import run_plan, session
    from orchestrator.jobfile import Experiment
    from orchestrator.supervisor.events import SilentReporter

    # The benchmark's orphan reaper kills what carries its token: this process, but not this process's own reaper,
    # which then kills the workers.
    os.environ.pop(TOKEN_VARIABLE, None)
    path = Path(arguments[0])
    request = json.loads(path.read_text(encoding="utf-8"))
    jobs = []
    for entry in request["jobs"]:
        spec = WorkerSpec(**entry["spec"])
        source = entry["xml_source"]
        jobs.append(
            Job(
                job_id=spec.job_id,
                where=spec.name,
                spec=spec,
                resources=Resources(**entry["resources"]),
                max_retries=0,
                xml_source=None if source is None else Path(source),
            )
        )
    experiment = Experiment(
        name="benchmark",
        max_parallel=request["max_parallel"],
        order="longest-first",
        jobs=tuple(jobs),
        source=str(path),
        base=path.parent,
    )
    options = run_plan.RunOptions(run_dir=Path(request["run_dir"]), grace_s=request["grace_s"])
    try:
        return session.run(experiment, options, SilentReporter()).exit_code
    except OrchestratorError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
