"""The package versions that a node must have in common with the driver, so that a job is the same job on both."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from orchestrator.machine import provenance

Versions: TypeAlias = Mapping[str, str | None]

PACKAGE = Path(__file__).parents[2]
CODE = "code of orchestrator"
DECIDING = ("torch", "stable-baselines3", "gymnasium", "mujoco", "numpy", CODE)
"""Packages that change results. So does Python's minor version: with another one, pickles may not even load."""


@functools.cache
def installed_versions() -> Versions:
    """The versions here; for this package also a hash of its code, as a checkout changes without a new version."""
    return {**provenance.versions(), CODE: _hash_of_code()}


def _hash_of_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDifferences:
    """Between the driver and a node, a line each: ``numpy 2.1.0, here 2.4.6``."""

    deciding: tuple[str, ...]
    others: tuple[str, ...]


def differences(driver: Versions, node: Versions) -> VersionDifferences:
    deciding: list[str] = []
    others: list[str] = []
    for name in {**driver, **node}:
        here, there = driver.get(name), node.get(name)
        if here != there:
            line = f"{name} {there or 'missing'}, here {here or 'missing'}"
            (deciding if _changes_results(name, here, there) else others).append(line)
    return VersionDifferences(deciding=tuple(deciding), others=tuple(others))


def _changes_results(name: str, here: str | None, there: str | None) -> bool:
    if name == "python":
        return (here or "").split(".")[:2] != (there or "").split(".")[:2]
    # After the plus sign follows the accelerator of the build: on a CPU all builds compute the same.
    return name in DECIDING and (here or "").partition("+")[0] != (there or "").partition("+")[0]
