"""Checkpoint files: each holds everything that decides how a training goes on, and is whole or
absent.

A training that is killed at any instant and resumes from its newest checkpoint ends with the same
bits as one that was never killed. A checkpoint holds the spec's fingerprint, so that none is
resumed under other hyperparameters. It holds only the number of rows of a replay buffer; the rows
are in files of their own (:mod:`.replay`). Loading a checkpoint runs code (pickle): only a job's
own are loaded, and what the user names with ``init``, ``load`` or ``play --checkpoint``.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from orchestrator.core.files.atomic_files import remove_partial_files, write_whole
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.paths import CHECKPOINT, DAMAGED, REPLAY
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.failures import CheckpointError, describe
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training.replay import Replay
from orchestrator.worker.training.sealed_files import DamagedError, seal, unseal
from orchestrator.worker.training.training_state import OF_EACH_RANK

KEPT = 2
"""Checkpoints of a job."""


class CheckpointStore:
    """The ``checkpoints`` directory of one job, written by one process at a time.

    Ranks may run on nodes that share no files. Each then has such a directory of its own. Only rank
    0's gets new checkpoints, and the files of each rank are copied to the run directory
    independently. Of two checkpoints the run directory has the replay buffers of all ranks for the
    older one, as long as copying takes less time than there is between checkpoints.

    :param replay: the files of the model's replay buffer, where it has one; :meth:`newest` fills
        the buffer.
    :param n_envs: env_steps of one row of the replay buffer.
    :param before_writing: called before a file is written.
    :param earlier: fingerprints of the same training with fewer env_steps, whose checkpoints it
        resumes from as well.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: str,
        replay: Replay | None = None,
        n_envs: int = 1,
        before_writing: Callable[[], object] = lambda: None,
        earlier: Collection[str] = (),
    ) -> None:
        self._directory = directory
        self._fingerprint = fingerprint
        self._earlier = earlier
        self._replay = replay
        self._n_envs = n_envs
        self._before_writing = before_writing
        self.problems: list[str] = []
        """A sentence about each checkpoint that was damaged, without its full stop."""
        directory.mkdir(parents=True, exist_ok=True)

    def save(
        self, env_steps: int, state: dict[str, Any], ranks: Ranks = ALONE, *, is_last: bool = False
    ) -> None:
        """Write one checkpoint and remove those before the last :data:`KEPT`.

        All ranks call it; rank 0 writes one file with what differs between them. The others remove
        the replay rows that none of rank 0's checkpoints needs.

        :param is_last: nothing will be learnt after it, so that it needs no replay buffer.
        :raises OSError: it cannot be written; the earlier checkpoints stand.
        """
        if self._replay is not None and not is_last:
            rows = env_steps // self._n_envs
            self._before_writing()
            self._replay.save(rows)
            state = {"rows": rows, **state}
        own = {name: state[name] for name in OF_EACH_RANK if name in state}
        of_ranks = ranks.all_gather_object((min(self._env_steps(), default=0), own))
        # Now that all have answered, the replay buffers of all are on the disk.
        if ranks.rank > 0:
            if not is_last:  # afterwards rank 0 removes all replay buffers
                self._forget_rows_before(of_ranks[0][0])
            return
        head = {"fingerprint": self._fingerprint, "env_steps": env_steps}
        # Through memory: torch reports a full disk as a RuntimeError of its own.
        content = io.BytesIO()
        torch.save({**head, **state, "ranks": [own for _, own in of_ranks]}, content)
        self._before_writing()
        write_whole(self.path(env_steps), seal(content.getvalue()))
        self._remove(self._env_steps()[:-KEPT])

    def drop_replay(self) -> None:
        """Remove what only further training needs, of all ranks in this directory: the policy is
        saved.
        """
        if self._replay is not None:
            self._remove(self._env_steps()[:-1])
            for directory in self._directory.glob(f"{REPLAY}*"):
                shutil.rmtree(directory)

    def _remove(self, surplus: Sequence[int]) -> None:
        """Remove checkpoints, and the replay rows that no other one needs."""
        for env_steps in surplus:
            self.path(env_steps).unlink(missing_ok=True)
        self._forget_rows_before(min(self._env_steps(), default=0))

    def _forget_rows_before(self, env_steps: int) -> None:
        if self._replay is not None:
            self._replay.forget_before(env_steps // self._n_envs)

    def newest(self, ranks: Ranks = ALONE) -> dict[str, Any] | None:
        """Return the newest whole checkpoint, or None. Damaged ones get another name, with a line
        in the log.

        All ranks call it and get the same one, each with its own part and replay buffer.

        :raises ValueError: it belongs to another spec.
        :raises CheckpointError: it is not damaged, but cannot be loaded; it is kept.
        """
        if ranks.rank == 0:
            remove_partial_files(self._directory)
        while True:
            newest: int | None = ranks.all_gather_object(max(self._env_steps(), default=None))[0]
            if newest is None:
                if self._replay is not None:
                    self._replay.clear()
                return None
            problem = None
            try:
                state = self._load(self.path(newest), ranks)
            except DamagedError as error:
                problem = str(error)
            problems = [text for text in ranks.all_gather_object(problem) if text is not None]
            if not problems:
                return state
            if ranks.rank == 0:
                self._set_aside(self.path(newest), problems[0])

    def _load(self, path: Path, ranks: Ranks) -> dict[str, Any]:
        """Load a checkpoint, and fill the replay buffer as it was.

        :raises ValueError: it belongs to another spec.
        """
        with explaining_failure(path), open_regular(path) as file:
            state = load(file.read())
        if state.get("fingerprint") not in (self._fingerprint, *self._earlier):
            raise ValueError(
                f"{path} was written under other settings of this job; "
                "remove the checkpoints to train from the start, or restore the settings to resume"
            )
        if self._replay is not None and "rows" in state:
            with explaining_failure(path):
                self._replay.restore(state["rows"])
        return {**state, **state["ranks"][ranks.rank]}

    def _set_aside(self, path: Path, problem: str) -> None:
        aside = path.replace(path.with_name(f"{path.name}{DAMAGED}"))
        self.problems.append(
            f"{path.name} is damaged ({problem}) and was set aside as {aside.name}"
        )
        say(f"checkpoint {self.problems[-1]}")

    def path(self, env_steps: int) -> Path:
        return self._directory / f"checkpoint-{env_steps:012d}.pt"

    def _env_steps(self) -> list[int]:
        """The env_steps of the checkpoints, in ascending order."""
        matches = [CHECKPOINT.fullmatch(path.name) for path in self._directory.iterdir()]
        return sorted(int(match[1]) for match in matches if match)


@contextlib.contextmanager
def explaining_failure(path: Path) -> Iterator[None]:
    """Whatever loading ``path`` raises in the block, except damage, becomes an error that says what
    to do.
    """
    try:
        yield
    except DamagedError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be loaded: {describe(error)}. The file is kept. Correct the cause and queue the job again "
            "with `retry`; to train from the start instead, first remove the folder that it is in"
        ) from error


def load(content: bytes) -> dict[str, Any]:
    """Return the state in a checkpoint file's bytes. Loading runs code: see above.

    :raises DamagedError: they are not those that were written.
    :raises Exception: of any kind, when unpickling fails: whole bytes are not damaged, so the
        reason is code that has changed, or a class of the user's.
    """
    file = io.BytesIO(unseal(content))
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return state
