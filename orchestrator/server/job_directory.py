"""What the supervisor itself writes, compares and removes in a job's directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.core.files.atomic_files import (
    clone_tree,
    remove_partial_files,
    sync_directory,
    sync_trees,
    write_whole,
)
from orchestrator.core.paths import JobPaths
from orchestrator.core.robot_hash import alteration
from orchestrator.core.worker_spec import OFF_POLICY, WorkerSpec


class RobotAlteredError(OSError):
    """The robot in a job directory is not the one that was examined."""


def refuse_altered(directory: JobPaths, xml: str | None, expected: str | None) -> None:
    """:param xml: of the job's specification.
    :param expected: hash of the robot that was examined; None without a robot.
    :raises RobotAlteredError: the robot in a job directory is another one.
    :raises OSError: files cannot be read.
    """
    if (what := alteration(directory, xml, expected)) is not None:
        raise RobotAlteredError(
            f"{what}. Restore them and queue the job with `retry`; or queue it and run the job file with"
            " the robot as it was, which puts it back"
        )


def put_back(directory: JobPaths, xml: str | None, expected: str | None, examined: Path) -> str:
    """Put the robot that was examined in place of an altered copy in a job directory. Return what was
    done, or an empty text if it is intact.

    A kill at any moment leaves one or the other, or none, but no mixture. If it leaves none, the
    next run puts it there.

    :param xml: of the job's specification.
    :param expected: hash of ``examined``.
    :raises OSError: files cannot be read or written.
    """
    if (what := alteration(directory, xml, expected)) is None:
        return ""
    beside = directory.root / ".robot.tmp"
    shutil.rmtree(beside, ignore_errors=True)
    clone_tree(examined, beside)
    sync_trees([beside])
    aside = ""
    if directory.robot.exists():
        shutil.rmtree(directory.robot_altered, ignore_errors=True)
        directory.robot.rename(directory.robot_altered)
        aside = f", and what was there is now {directory.robot_altered}"
    beside.rename(directory.robot)
    sync_directory(directory.root)
    return f"{what}; the robot was put back{aside}"


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
