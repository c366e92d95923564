"""What the supervisor itself does in the directory of a job, before an attempt and when the training is done."""

from __future__ import annotations

import shutil

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec


def free_number(paths: JobPaths, number: int) -> int:
    """``number``, or the last of later ones that have a folder already.

    A power cut may take the latest launches from the ledger and leave their folders; and a worker that finds the folder
    of a later attempt than its own takes itself for superseded.
    """
    while paths.attempt(number + 1).root.exists():
        number += 1
    return number


def prepare(paths: JobPaths, number: int, spec: WorkerSpec) -> None:
    """All that the workers of attempt ``number`` find. :raises OSError: as the disk answers."""
    attempt = paths.attempt(number)
    attempt.root.mkdir(parents=True, exist_ok=True)
    # A supervisor that died between launch and record may have left some of the same number.
    for left in (attempt.rendezvous, *map(attempt.exit_of, range(spec.ranks))):
        left.unlink(missing_ok=True)
    write_whole(paths.spec, spec.to_json(), durable=False)


def tidy(paths: JobPaths, ranks: int) -> None:
    """Remove what only going on with the training would need, and the worker could not see.

    That is the replay buffers of ranks on other nodes than rank 0's: there is a moment when they have come home, but
    not yet the checkpoint that does without them, so that they themselves may not remove them either.
    """
    for rank in range(1, ranks):
        shutil.rmtree(paths.replay(rank), ignore_errors=True)
