"""NVIDIA GPUs, as nvidia-smi lists them."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.job import GPU_PARTS

USED_SHARE = 0.1
"""Of a GPU's memory; what driver and screen take is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: str
    """Entry for ``CUDA_VISIBLE_DEVICES``: a UUID, or the name in the variable that this process was
    given."""
    name: str
    memory_mib: int | None
    """All of its memory."""
    free_mib: int | None = None
    """Memory that no process used when the GPUs were listed."""

    @property
    def is_in_use(self) -> bool:
        """Whether others used a part of its memory that is no screen's or driver's."""
        if self.memory_mib is None or self.free_mib is None:
            return False
        return self.memory_mib - self.free_mib > USED_SHARE * self.memory_mib


class FreeGpus:
    """What is free of each GPU, by its name, in parts of 1/10,000: sums of floats would not be
    exact.

    :param names: in the order in which those are taken that are equally free.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._free = dict.fromkeys(names, GPU_PARTS)

    def __len__(self) -> int:
        """Number of GPUs, free or not."""
        return len(self._free)

    def find(self, gpus: float) -> tuple[str, ...] | None:
        """So many whole GPUs, or the fullest one with room for a share below 1; None while there is
        none.

        Ray chooses in the same way: GPUs that are not shared stay whole, for jobs that need a whole
        one.
        """
        parts = _parts(gpus)
        number = math.ceil(gpus)
        fitting = sorted(
            (name for name, free in self._free.items() if free >= parts), key=self._free.__getitem__
        )
        return tuple(fitting[:number]) if len(fitting) >= number else None

    def change(self, names: Iterable[str], gpus: float, sign: int) -> None:
        """``names`` were found for ``gpus``, and are taken (-1) or given back (1)."""
        for name in names:
            self._free[name] += sign * _parts(gpus)


def _parts(gpus: float) -> int:
    """How many parts of each GPU are needed."""
    return round(min(gpus, 1) * GPU_PARTS)


GPU_QUERY = (
    "--query-gpu=index,uuid,name,memory.total,memory.free",
    "--format=csv,noheader,nounits",
)


def detect_gpus(
    environment: Mapping[str, str] = os.environ, *, timeout_s: float = 5.0
) -> tuple[Gpu, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` allows, under its names or else their UUIDs; none
    without nvidia-smi.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None or visible == "":
        return ()
    try:
        answer = subprocess.check_output(
            [program, *GPU_QUERY],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=timeout_s,
        )
    except (OSError, subprocess.SubprocessError):  # without a driver it fails, or hangs
        return ()
    rows = [[field.strip() for field in line.split(",")] for line in answer.splitlines()]
    rows = [row for row in rows if len(row) == 5]
    if visible is None:
        return tuple(_gpu(row[1], row) for row in rows)
    gpus: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        # A number, or the beginning of a UUID.
        named = [
            row
            for row in rows
            if entry == row[0] or (entry.startswith("GPU-") and row[1].startswith(entry))
        ]
        if named:
            gpus.append(_gpu(entry, named[0]))
        elif entry.startswith("MIG-"):
            gpus.append(Gpu(index=entry, name="MIG instance", memory_mib=None))
        else:  # CUDA hides what comes after an entry that names no device
            break
    return tuple(gpus)


def _gpu(index: str, row: Sequence[str]) -> Gpu:
    """:param row: the answer to :data:`GPU_QUERY` for one GPU."""
    total, free = (int(text) if text.isdecimal() else None for text in row[3:])
    return Gpu(index=index, name=row[2], memory_mib=total, free_mib=free)
