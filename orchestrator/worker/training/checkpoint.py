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
import math
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from orchestrator.core.files.atomic_files import remove_partial_files, write_whole
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.paths import CHECKPOINT, DAMAGED, REPLAY
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.runtime.failures import CheckpointError, describe
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training.replay import DamagedError, Replay, check_whole
from orchestrator.worker.training.training_state import OF_EACH_RANK

FORMAT = 1
"""Of checkpoints. Whoever changes what they hold, so that those of before cannot be loaded, changes
the number."""
KEPT = 2
"""Checkpoints of a job."""
KEPT_DAMAGED = 3
"""Damaged checkpoints of a job."""
TRANSFER_S = 60.0
"""How long a file may be on its way from another node: a few seconds, or until a stalled network
works again."""
DAMAGED_REPLAY = "its replay buffer is damaged"
ARCHIVE_ERROR = re.compile(r"PytorchStreamReader failed(?!.*alloc)")
"""How torch begins a message about the structure of an archive, which zipfile does not check in
every detail."""


class _RankPart(NamedTuple):
    """What a rank tells the others when a checkpoint is written."""

    oldest_env_steps: int | None
    """Of its oldest checkpoint."""
    state: dict[str, Any]
    """What differs between ranks."""


class CheckpointStore:
    """The ``checkpoints`` directory of one job, written by one process at a time.

    Ranks may run on nodes that share no files. Each then has such a directory of its own. Only rank
    0's gets new checkpoints, and the files of each rank are copied to the run directory
    independently. The run directory holds at any time a checkpoint with the replay buffers of all
    ranks, as long as no copy takes longer than :data:`TRANSFER_S`.

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
        now: Callable[[], float] = time.monotonic,
        earlier: Collection[str] = (),
    ) -> None:
        self._directory = directory
        self._fingerprint = fingerprint
        self._earlier = earlier
        self._replay = replay
        self._n_envs = n_envs
        self._before_writing = before_writing
        self._now = now
        self._written_at: dict[Path, float] = {}
        """Of the files of this attempt; those of earlier attempts came from the run directory."""
        self.problems: list[str] = []
        """A sentence about each damaged checkpoint that was set aside, without its full stop."""
        directory.mkdir(parents=True, exist_ok=True)

    def save(
        self, env_steps: int, state: dict[str, Any], ranks: Ranks = ALONE, *, is_last: bool = False
    ) -> None:
        """Write one checkpoint and remove those before the last :data:`KEPT`.

        All ranks call it; rank 0 writes one file with what differs between them. The others remove
        the replay rows that none of rank 0's checkpoints needs. Where ranks have replay buffers,
        rank 0 also keeps the checkpoints that the run directory may have to resume from.

        :param is_last: nothing will be learnt after it, so that it needs no replay buffer.
        :raises OSError: it cannot be written; the earlier checkpoints stand.
        """
        if self._replay is not None and not is_last:
            rows = env_steps // self._n_envs
            self._before_writing()
            self._replay.save(rows)
            state = {"rows": rows, **state}
        if ranks.size > 1:
            own = {name: state[name] for name in OF_EACH_RANK}
            parts: list[_RankPart] = ranks.all_gather_object(
                _RankPart(self._oldest_env_steps(), own)
            )
            # Now that all have answered, the replay buffers of all are on the disk.
            if ranks.rank > 0:
                if not is_last:  # afterwards rank 0 removes all replay buffers
                    self._forget_rows_before(parts[0].oldest_env_steps)
                return
            state = {**state, "ranks": [part.state for part in parts]}
        self._write(env_steps, state)
        paths = self._paths()
        n_kept = KEPT
        if ranks.size > 1 and self._replay is not None:
            n_kept = max(KEPT, self._in_transfer(paths) + 1)
        self._remove(paths[:-n_kept])

    def _write(self, env_steps: int, state: Mapping[str, Any]) -> None:
        # Through memory: torch reports a full disk as a RuntimeError of its own.
        content = io.BytesIO()
        head = {"format": FORMAT, "fingerprint": self._fingerprint, "env_steps": env_steps}
        torch.save({**head, **state}, content)
        self._before_writing()
        write_whole(self.path(env_steps), content.getvalue())
        self._written_at[self.path(env_steps)] = self._now()

    def _in_transfer(self, paths: Sequence[Path]) -> int:
        """How many of the checkpoints were written so recently that, in the run directory, replay
        rows of other ranks may still be missing, or be there without the checkpoint.
        """
        settled = self._now() - TRANSFER_S
        return sum(self._written_at.get(path, -math.inf) > settled for path in paths)

    def drop_replay(self) -> None:
        """Remove what only further training needs, of all ranks in this directory: the policy is
        saved.
        """
        if self._replay is not None:
            self._remove(self._paths()[:-1])
            for directory in self._directory.glob(f"{REPLAY}*"):
                shutil.rmtree(directory)

    def _remove(self, paths: Sequence[Path]) -> None:
        """Remove checkpoints, and the replay rows that no other one needs."""
        for path in paths:
            path.unlink(missing_ok=True)
            self._written_at.pop(path, None)
        self._forget_rows_before(self._oldest_env_steps())

    def _oldest_env_steps(self) -> int | None:
        """Of the oldest checkpoint; None where there is none."""
        paths = self._paths()
        return int(paths[0].stem.rpartition("-")[2]) if paths else None

    def _forget_rows_before(self, env_steps: int | None) -> None:
        if self._replay is not None and env_steps is not None:
            self._replay.forget_before(env_steps // self._n_envs)

    def newest(self, ranks: Ranks = ALONE) -> dict[str, Any] | None:
        """The newest whole checkpoint, or None. Damaged ones get another name, with a line in the
        log.

        All ranks call it and get the same one, each with its own replay buffer filled.

        :raises ValueError: it belongs to another spec.
        :raises CheckpointError: it is not damaged, but cannot be loaded; it is kept.
        """
        while True:
            state = self._newest_whole(ranks.size) if ranks.rank == 0 else None
            if ranks.size == 1:
                return state
            own_choice = None if state is None else state["env_steps"]
            chosen: int | None = ranks.all_gather_object(own_choice)[0]
            problem = None
            if chosen is None:
                self._clear_replay()
            elif ranks.rank > 0:
                try:
                    state = self._load(self.path(chosen))
                    self._fill_replay(self.path(chosen), state)
                except DamagedError as error:
                    problem = f"rank {ranks.rank}: {error}"
            problems = [one for one in ranks.all_gather_object(problem) if one is not None]
            if not problems:
                return state
            if ranks.rank == 0 and chosen is not None:
                self._set_aside(self.path(chosen), problems[0])

    def _newest_whole(self, ranks: int) -> dict[str, Any] | None:
        """On rank 0: the newest state, with its replay buffer filled, or None.

        :param ranks: number of ranks of this attempt.
        """
        remove_partial_files(self._directory)
        for path in reversed(self._paths()):
            try:
                state = self._load(path)
                self._check_settings(path, state, ranks)
                self._fill_replay(path, state)
                return state
            except DamagedError as error:
                self._set_aside(path, str(error))
        self._clear_replay()
        return None

    def _load(self, path: Path) -> dict[str, Any]:
        """The state in ``path``. :raises DamagedError: its bytes are not those that were written."""
        with explaining_failure(path), open_regular(path) as file:
            return load(file.read())

    def _check_settings(self, path: Path, state: Mapping[str, Any], ranks: int) -> None:
        """Compare the fingerprint. :raises ValueError: the state is of another spec."""
        with explaining_failure(path):
            fingerprint = state["fingerprint"]
        if fingerprint in (self._fingerprint, *self._earlier):
            return
        before = len(state["ranks"]) if "ranks" in state else 1
        what = "other settings of this job"
        if before != ranks:
            what = f"resources.ranks = {before}, not {ranks}"
        raise ValueError(
            f"{path} was written under {what}; "
            "remove the checkpoints to train from the start, or restore the settings to resume"
        )

    def _fill_replay(self, path: Path, state: Mapping[str, Any]) -> None:
        """Fill the replay buffer as it was. :raises DamagedError: its files are damaged."""
        if self._replay is None or "rows" not in state:
            return
        try:
            with explaining_failure(path):
                self._replay.restore(state["rows"])
        except DamagedError as error:
            raise DamagedError(f"{DAMAGED_REPLAY}: {error}") from error

    def _set_aside(self, path: Path, problem: str) -> None:
        aside = path.replace(path.with_name(f"{path.name}{DAMAGED}"))
        self.problems.append(
            f"{path.name} is damaged ({problem}) and was set aside as {aside.name}"
        )
        say(f"checkpoint {self.problems[-1]}")
        for surplus in self.damaged_checkpoints()[:-KEPT_DAMAGED]:
            surplus.unlink()

    def damaged_checkpoints(self) -> list[Path]:
        """The damaged checkpoints that this attempt and earlier ones have set aside, in the order
        of writing.
        """
        return sorted(
            self._directory.glob(f"*{DAMAGED}"),
            key=lambda path: (path.stat().st_mtime_ns, path.name),
        )

    def _clear_replay(self) -> None:
        if self._replay is not None:
            self._replay.clear()

    def path(self, env_steps: int) -> Path:
        return self._directory / f"checkpoint-{env_steps:012d}.pt"

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._directory.iterdir() if CHECKPOINT.fullmatch(path.name))


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
            f"{path} cannot be loaded: {describe(error)}. The file is kept. Correct the cause (too little memory, or a"
            " package or class that has changed since it was written) and queue the job again with `retry`; to train"
            " from the start instead, first remove the folder that it is in"
        ) from error


def load(content: bytes) -> dict[str, Any]:
    """The state in a checkpoint file's bytes. Loading runs code: see above.

    :raises DamagedError: they are not those that were written. Torch itself does not compare
        checksums.
    :raises Exception: of any kind, when unpickling fails: bytes with the right checksums are not
        damaged, so that an UnpicklingError or EOFError, too, comes from code that has changed, or
        from a class of the user's.
    """
    check_whole(content)
    try:
        state: dict[str, Any] = torch.load(
            io.BytesIO(content), map_location="cpu", weights_only=False
        )
    except RuntimeError as error:
        if ARCHIVE_ERROR.match(str(error)):
            raise DamagedError(str(error).partition("\n")[0]) from error
        raise
    if state.get("format") != FORMAT:
        raise ValueError(f"it has format {state.get('format')}, expected format {FORMAT}")
    return state
