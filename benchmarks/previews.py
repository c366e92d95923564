"""What previews cost: drawing them, and keeping the poses that they are drawn from.

    python -m benchmarks.previews [--jobs jobs/robots.toml] [--repeats 5] [--only alone,together,evaluation]

The robots of the job file are trained shortly, with OpenGL switched off, so that their poses wait.
``alone``: CPU seconds of a process that draws one robot, as in a run with one job. ``together``:
the same for each of all robots that one process draws. ``evaluation``: how much longer evaluations
take that keep a pose.
"""

from __future__ import annotations

import argparse
import csv
import functools
import os
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ORCHESTRATOR, ROOT, Line, at_most, both_ways, print_table
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.experiment.processes.policy_process import PolicyProcess
from orchestrator.features.pictures.previews import StillsRequest

SETTINGS = ("total_timesteps=8192", "checkpoint_every=8192")
MOST_S = 1.0


def trained(jobs: Path, folder: str, *, preview: bool) -> RunPaths:
    """A run directory whose poses wait. :raises subprocess.CalledProcessError: the run failed."""
    run_dir = Path(folder) / f"run-{preview}"
    settings = [
        f"--set={one}" for one in (*SETTINGS, f"preview={str(preview).lower()}", "video=false")
    ]
    command = [*ORCHESTRATOR, "run", str(jobs), f"--run-dir={run_dir}", *settings]
    environment = {**os.environ, "MUJOCO_GL": "disable"}
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment)
    return RunPaths(run_dir)


def drawn(jobs: Sequence[JobPaths]) -> float:
    """CPU seconds of the process that draws ``jobs``, whose poses wait again afterwards."""
    poses = [job.moment.read_bytes() for job in jobs]
    before = _children_s()
    request = StillsRequest(others=tuple(job.root for job in jobs[1:]))
    with PolicyProcess(jobs[0], request, is_quiet=True) as process:
        code, message = process.wait()
    spent = _children_s() - before
    if code != 0:
        raise OSError(message)
    for job, pose in zip(jobs, poses, strict=True):
        job.moment.write_bytes(pose)
    return spent


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _waiting(paths: RunPaths) -> list[JobPaths]:
    return [JobPaths(pose.parent) for pose in sorted(paths.jobs.glob("*/moment.npz"))]


def alone(jobs: Path, repeats: int) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        waiting = _waiting(trained(jobs, folder, preview=True))
        of_robot = {job.root.name: [drawn([job]) for _ in range(repeats)] for job in waiting}
    worst = max(of_robot, key=lambda name: statistics.median(of_robot[name]))
    middles = [statistics.median(values) for values in of_robot.values()]
    return [
        at_most("CPU s of a process that draws one robot, over the robots", middles, MOST_S),
        at_most(
            f"the same of {worst}, which takes longest, over the repeats", of_robot[worst], MOST_S
        ),
    ]


def together(jobs: Path, repeats: int) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        waiting = _waiting(trained(jobs, folder, preview=True))
        values = [drawn(waiting) / len(waiting) for _ in range(repeats)]
        kib = [job.preview.stat().st_size / 1024 for job in waiting]
        poses = [job.moment.stat().st_size / 1024 for job in waiting]
    return [
        at_most(f"CPU s for each of {len(waiting)} robots that one process draws", values, MOST_S),
        at_most("KiB of a preview", kib),
        at_most("KiB of a pose", poses),
    ]


def evaluation(jobs: Path, repeats: int) -> list[Line]:
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(repeats):
        for preview in both_ways(number, False, True):
            with tempfile.TemporaryDirectory() as folder:
                table = trained(jobs, folder, preview=preview).summary_csv
                with table.open(newline="") as file:
                    seconds[preview].append(
                        statistics.mean(float(row["eval_s"]) for row in csv.DictReader(file))
                    )
    added = [kept - plain for plain, kept in zip(seconds[False], seconds[True], strict=True)]
    return [
        at_most("mean s of an evaluation that keeps no pose", seconds[False]),
        at_most("s added to it by keeping one", added),
    ]


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--jobs", type=Path, default=ROOT / "jobs/robots.toml")
    jobs = options.parse_known_args()[0].jobs.absolute()
    parts = {"alone": alone, "together": together, "evaluation": evaluation}
    print_table(
        __doc__, {name: functools.partial(part, jobs) for name, part in parts.items()}, options
    )


if __name__ == "__main__":
    main()
