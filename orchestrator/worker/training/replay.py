"""The replay buffer of a training on disk, beside its checkpoints.

A checkpoint with the whole buffer would take gigabytes, nearly all of them equal to the last one's.
Instead every transition is written once: each checkpoint adds files with the rows that are new
since the one before, and files are removed when no remaining checkpoint needs them.

A row is one step of all environments. Rows are counted from the start of the training: row *i* is
at index ``i % buffer.buffer_size`` of the buffer.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from orchestrator.core.files.atomic_files import remove_partial_files, write_whole
from orchestrator.worker.training.sealed_files import DamagedError, seal, unseal

MOST_BYTES = 16 * 2**20
"""Size of a file: one is in memory while it is read or written."""
_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class _File(NamedTuple):
    path: Path
    first: int
    end: int
    """The row after the last."""


class Replay:
    """The files of one replay buffer, written by one process at a time."""

    def __init__(self, directory: Path, buffer: ReplayBuffer) -> None:
        self._directory = directory
        self._buffer = buffer
        self._saved = 0
        directory.mkdir(parents=True, exist_ok=True)
        remove_partial_files(directory)

    def save(self, rows: int) -> None:
        """Write the rows that were added since the last call.

        :param rows: added since the start of the training.
        :raises OSError: they cannot be written; what was saved before stands.
        """
        size = self._buffer.buffer_size
        arrays = arrays_of(self._buffer)
        row_bytes = sum(array[0].nbytes for array in arrays.values())
        most = max(1, MOST_BYTES // row_bytes)
        first = max(self._saved, rows - size)
        while first < rows:
            at = first % size
            end = min(rows, first + most, first + size - at)
            content = io.BytesIO()
            np.savez(content, *[array[at : at + end - first] for array in arrays.values()])
            path = self._directory / f"rows-{first:012d}-{end:012d}.npz"
            write_whole(path, seal(content.getvalue()))
            first = self._saved = end

    def restore(self, rows: int) -> None:
        """Fill the buffer as it was when ``rows`` rows had been added, and remove files written
        after that.

        :raises DamagedError: rows are missing, or a file is damaged.
        :raises OSError: a file cannot be read.
        """
        size = self._buffer.buffer_size
        reached = max(0, rows - size)
        for file in self._files():
            if file.end > rows:
                file.path.unlink()
            elif file.first <= reached < file.end:
                self._fill(file, reached)
                reached = file.end
        if reached < rows:
            raise DamagedError(f"rows {reached} to {rows} of the replay buffer are missing")
        self._buffer.pos = rows % size
        self._buffer.full = rows >= size
        self._saved = rows

    def _fill(self, file: _File, first: int) -> None:
        """Read the rows of ``file`` from ``first`` on."""
        try:
            content = unseal(file.path.read_bytes())
        except DamagedError as damage:
            raise DamagedError(f"its replay buffer: {file.path.name}: {damage}") from None
        at = first % self._buffer.buffer_size
        with np.load(io.BytesIO(content)) as saved:
            for name, array in zip(saved.files, arrays_of(self._buffer).values(), strict=True):
                array[at : at + file.end - first] = saved[name][first - file.first :]

    def forget_before(self, rows: int) -> None:
        """Remove the files that are not needed to resume from ``rows`` or later."""
        for file in self._files():
            if file.end <= rows - self._buffer.buffer_size:
                file.path.unlink()

    def clear(self) -> None:
        """Remove all files."""
        self.restore(0)

    def _files(self) -> list[_File]:
        """Return the files, by their first row."""
        found = []
        for path in sorted(self._directory.glob("rows-*.npz")):
            _, first, end = path.stem.split("-")
            found.append(_File(path, int(first), int(end)))
        return found


def is_known(buffer: ReplayBuffer | None) -> bool:
    """Return whether all that the buffer holds is in its arrays, its position and whether it is
    full.
    """
    kinds = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)
    return buffer is not None and type(buffer) in kinds and not buffer.optimize_memory_usage


def arrays_of(buffer: ReplayBuffer) -> dict[str, NDArray[Any]]:
    """Return the arrays of the buffer by name, each ``(buffer_size, n_envs, …)``; of ``Dict``
    observations one for each key.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name in _ARRAYS:
        array = getattr(buffer, name)
        if isinstance(array, dict):
            arrays |= {f"{name}.{key}": part for key, part in array.items()}
        else:
            arrays[name] = array
    return arrays
