"""What the supervisor itself writes and removes in a job's directory."""

from __future__ import annotations

import shutil

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.paths import CHECKPOINT, JobPaths
from orchestrator.core.worker_spec import WorkerSpec


def free_number(paths: JobPaths, number: int) -> int:
    """``number``, or the last of the later attempts that have a directory already.

    A power cut may remove the latest launches from the ledger and leave their directories; and a worker that finds
    the directory of a later attempt than its own ends as superseded.
    """
    while paths.attempt(number + 1).root.exists():
        number += 1
    return number


def prepare(paths: JobPaths, number: int, spec: WorkerSpec) -> None:
    """Write what the workers of attempt ``number`` read. :raises OSError: a file cannot be written."""
    attempt = paths.attempt(number)
    attempt.root.mkdir(parents=True, exist_ok=True)
    # A supervisor that died between launch and record may have left files under the same number.
    for path in (attempt.rendezvous, *map(attempt.exit_of, range(spec.ranks))):
        path.unlink(missing_ok=True)
    write_whole(paths.spec, spec.to_json(), durable=False)


def checkpointed_steps(paths: JobPaths) -> int:
    """env_steps of the newest checkpoint, from which the next attempt resumes; 0 without one."""
    names = (CHECKPOINT.fullmatch(path.name) for path in paths.checkpoints.glob("*"))
    return max((int(name[1]) for name in names if name is not None), default=0)


def remove_replay_buffers(paths: JobPaths, ranks: int) -> None:
    """Remove the replay buffers of ranks above 0, which cannot do it: other nodes may copy them back later."""
    for rank in range(1, ranks):
        shutil.rmtree(paths.replay(rank), ignore_errors=True)
