"""NVIDIA GPUs, as nvidia-smi lists them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: str
    """Entry for ``CUDA_VISIBLE_DEVICES``: a UUID, or the name in the variable that this process was given."""
    name: str
    memory_mib: int | None


GPU_QUERY = ("--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")


def detect_gpus(environment: Mapping[str, str] = os.environ, *, timeout_s: float = 5.0) -> tuple[Gpu, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` allows, under its names or else their UUIDs; none without nvidia-smi."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None or (visible is not None and not visible.strip()):
        return ()
    try:
        answer = subprocess.check_output(
            [program, *GPU_QUERY], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, timeout=timeout_s
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    rows = [row for line in answer.splitlines() if len(row := [field.strip() for field in line.split(",")]) == 4]
    if visible is None:
        return tuple(Gpu(index=uuid, name=name, memory_mib=_integer(memory)) for _, uuid, name, memory in rows)
    return _named_gpus(visible, rows)


def _named_gpus(visible: str, rows: Sequence[Sequence[str]]) -> tuple[Gpu, ...]:
    """By CUDA's rule, the first entry that names no device hides itself and all entries after it."""
    gpus: list[Gpu] = []
    for token in (part.strip() for part in visible.split(",")):
        matches = [row for row in rows if token == row[0] or (token.startswith("GPU-") and row[1].startswith(token))]
        if matches:
            gpus.append(Gpu(index=token, name=matches[0][2], memory_mib=_integer(matches[0][3])))
        elif token.startswith("MIG-"):
            gpus.append(Gpu(index=token, name="MIG instance", memory_mib=None))
        else:
            break
    return tuple(gpus)


def _integer(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
