"""What a node must have in common with the driver, so that a job is the same job on both."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.machine import provenance

Versions = Mapping[str, str | None]

CODE = "code of orchestrator"
DECIDING = ("torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", CODE)
"""What changes results. Of Python it is the second number: with another one, pickles may not even load."""


@functools.cache
def found() -> Versions:
    """The versions here; of this package also a hash of its code, as a checkout keeps its version while it changes."""
    return {**provenance.versions(), CODE: _hash_of_code()}


def _hash_of_code() -> str:
    root = Path(provenance.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Between the driver and a node, a line each: ``numpy 2.1.0, here 2.4.6``."""

    deciding: tuple[str, ...]
    """They change results."""
    others: tuple[str, ...]


def differences(here: Versions, there: Versions) -> Differences:
    deciding: list[str] = []
    others: list[str] = []
    for name in {**here, **there}:
        mine, its = here.get(name), there.get(name)
        if mine == its:
            continue
        line = f"{name} {its or 'missing'}, here {mine or 'missing'}"
        (deciding if _decides(name, mine, its) else others).append(line)
    return Differences(deciding=tuple(deciding), others=tuple(others))


def _decides(name: str, mine: str | None, its: str | None) -> bool:
    if name == "python":
        return (mine or "").split(".")[:2] != (its or "").split(".")[:2]
    # What follows a plus sign tells builds apart, for other accelerators: on a CPU they compute the same.
    return name in DECIDING and (mine or "").partition("+")[0] != (its or "").partition("+")[0]
