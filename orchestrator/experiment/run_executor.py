"""The executor of a run directory is part of its record: a run that names none takes the one of the
run before.

It is in ``provenance.json``. A supervisor that was killed before it wrote that may have submitted
pilots of Slurm: their files say so, and no other executor trains beside them.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING

from orchestrator.core.errors import RunDirError
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import left_batch_jobs, run_directory
from orchestrator.experiment.run_plan import RunOptions
from orchestrator.machine import provenance

if TYPE_CHECKING:
    from orchestrator.executors.slurm.left_pilots import LeftPilots

SLURM = "slurm"


def of_unclaimed(options: RunOptions) -> RunOptions:
    """As :func:`of_claimed`, while a supervisor may hold the run directory; of its batch jobs
    nothing is left.
    """
    paths = RunPaths(options.run_dir)
    left = left_batch_jobs.of(paths) if run_directory.holder(paths) is None else None
    return _chosen(options, paths, left)


def of_claimed(options: RunOptions, paths: RunPaths) -> RunOptions:
    """``options`` with the executor of the run before where they name none, and with its address
    and storage.

    :param paths: the run directory, which this process holds.
    :raises RunDirError: batch jobs are left that may still train, and another executor is named, or
        all jobs are to start over.
    """
    return _chosen(options, paths, left_batch_jobs.of(paths))


def explained(asked: RunOptions, taken: RunOptions) -> str:
    """A sentence that names the executor where the command does not, unless it is the local one."""
    if asked.executor is not None or taken.executor in (None, "local"):
        return ""
    address = f" and --ray-address={taken.ray_address}" if taken.ray_address else ""
    return f"the jobs run with --executor={taken.executor}{address}, as in the run before"


def _chosen(options: RunOptions, paths: RunPaths, left: LeftPilots | None) -> RunOptions:
    if left is not None:
        _refuse_beside(left, options, paths)
    recorded, name = provenance.executor(paths), options.executor
    if name is None and (left is not None or (not recorded and paths.slurm_session.exists())):
        name = SLURM
    elif name is None and recorded:
        name = recorded["executor"]
    if recorded.get("executor") != name:
        return dataclasses.replace(options, executor=name)
    address, storage = recorded.get("ray_address"), recorded.get("storage")
    return dataclasses.replace(
        options,
        executor=name,
        ray_address=options.ray_address or (address if isinstance(address, str) else None),
        storage=options.storage or (storage if isinstance(storage, str) else None),
    )


def _refuse_beside(left: LeftPilots, options: RunOptions, paths: RunPaths) -> None:
    run_dir, nobody = (
        shlex.quote(str(paths.root)),
        f"{paths.root}: no supervisor is running, and {left}",
    )
    if options.fresh:
        advice = f"`stop --wait {run_dir}` ends them; then --fresh starts over"
        raise RunDirError(f"{nobody} in the run directory, so it cannot be renamed. {advice}")
    if options.executor not in (None, SLURM):
        why = f"--executor={options.executor} would train the same jobs a second time"
        taken_over = "Without --executor, or with --executor=slurm, the run takes them over"
        otherwise = f"`stop --wait {run_dir}` ends them; then --executor={options.executor} resumes the jobs"
        raise RunDirError(f"{nobody}; {why}. {taken_over}. {otherwise}")
