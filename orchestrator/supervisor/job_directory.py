"""What the supervisor itself writes, compares and removes in a job's directory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.files.atomic_files import (
    clone_tree,
    remove_partial_files,
    sync_directory,
    sync_trees,
    write_whole,
)
from orchestrator.core.job import Job
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.robot_hash import alteration, hash_of_copy, main_file
from orchestrator.core.worker_spec import OFF_POLICY, WorkerSpec
from orchestrator.supervisor.events import Reporter


class RobotAlteredError(OSError):
    """The robot in a job directory is not the one that was examined, and there is no intact copy to
    put back.
    """


@dataclass(slots=True, kw_only=True)
class RobotCopies:
    """The robots in the job directories. Each is compared with its hash before the first attempt of
    a session.
    """

    paths: RunPaths
    hashes: dict[str, str | None]
    """By ``job_id``; None for a job without a robot."""
    staged: Mapping[str, Path]
    """Folder with the robot as it was examined in this session, by ``job_id``."""
    reporter: Reporter
    _compared: set[str] = field(default_factory=set, init=False)

    def ensure_intact(self, job: Job) -> None:
        """Put the staged copy in place of an altered one, with a warning.

        :raises RobotAlteredError: there is no staged copy of the same robot.
        :raises OSError: files cannot be read or written.
        """
        expected = self.hashes.get(job.job_id)
        directory = self.paths.job(job.job_id)
        if expected is None or job.spec.xml is None or job.job_id in self._compared:
            return
        if (what := alteration(directory, job.spec.xml, expected)) is not None:
            staged = self.staged.get(job.job_id)
            if staged is None or hash_of_copy(staged, main_file(job.spec.xml)) != expected:
                raise RobotAlteredError(
                    f"{what}. Restore them and queue the job with `retry`; or queue it and run the job file with"
                    " the robot as it was, which puts it back"
                )
            was_there = directory.robot.exists()
            _put_back(directory, staged)
            aside = f", and what was there is now {directory.robot_altered}" if was_there else ""
            text = f"{job.job_id}: {what}; the robot was put back{aside}"
            self.reporter.event("warning", text, job_id=job.job_id)
        self._compared.add(job.job_id)


def _put_back(directory: JobPaths, staged: Path) -> None:
    """Exchange the robot as a whole: a kill at any moment leaves one or the other, or none, but no
    mixture. Where it leaves none, the copy in ``staged`` is put there by the next run that has it.
    """
    beside = directory.root / ".robot.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    clone_tree(staged, beside)
    sync_trees([beside])
    if directory.robot.exists():
        shutil.rmtree(directory.robot_altered, ignore_errors=True)
        directory.robot.rename(directory.robot_altered)
    beside.rename(directory.robot)
    sync_directory(directory.root)


def free_number(paths: JobPaths, number: int) -> int:
    """``number``, or the last of the later attempts that have a directory already.

    A power cut may remove the latest launches from the ledger and leave their directories; and a
    worker that finds the directory of a later attempt than its own ends as superseded.
    """
    while paths.attempt(number + 1).root.exists():
        number += 1
    return number


def prepare(paths: JobPaths, number: int, spec: WorkerSpec) -> None:
    """Write what the workers of attempt ``number`` read.

    :raises OSError: a file cannot be written.
    """
    attempt = paths.attempt(number)
    attempt.root.mkdir(parents=True, exist_ok=True)
    # What was being written when a supervisor or the attempt before was killed.
    for path in (paths.spec, paths.robot_hash):
        remove_partial_files(paths.root, path.name)
    remove_partial_files(paths.attempt(number - 1).root)
    # On the disk before the attempt begins: it says of which training the files beside it are,
    # also where a power cut takes the attempt from the ledger.
    write_whole(paths.spec, spec.to_json())
    # A supervisor that died between launch and record may have left files under the same number.
    possible = (attempt.rendezvous, *map(attempt.exit_of, range(spec.ranks)))
    removed = [path for path in possible if _remove(path)]
    if removed:
        sync_directory(attempt.root)  # or a power cut brings them back, as those of this attempt


def _remove(path: Path) -> bool:
    """Remove a file. Returns whether there was one."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def checkpointed_steps(paths: JobPaths) -> int:
    """env_steps of the newest checkpoint, from which the next attempt resumes; 0 without one."""
    return max(paths.checkpoints_by_steps(), default=0)


def has_replay_buffer(paths: JobPaths, spec: WorkerSpec) -> bool:
    """Whether a job can learn on from its newest checkpoint: it has the rows of its replay buffer,
    or needs none.
    """
    steps = checkpointed_steps(paths)
    if spec.algo not in OFF_POLICY or not steps:
        return True
    last_rows = f"*-{steps // spec.n_envs:012d}.npz"  # a checkpoint ends with a file of rows
    return all(any(paths.replay(rank).glob(last_rows)) for rank in range(spec.ranks))


def remove_replay_buffers(paths: JobPaths, spec: WorkerSpec) -> None:
    """Remove the replay buffers of ranks above 0, unless they are to be kept. Their workers cannot
    do it: other nodes may copy them back later.
    """
    if spec.keep_replay_buffer:
        return
    for rank in range(1, spec.ranks):
        shutil.rmtree(paths.replay(rank), ignore_errors=True)
