"""The backends that ``--executor`` names. A new one is a module with its class, and an entry in
:data:`BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orchestrator.core.errors import UsageError
from orchestrator.executors.base import Backend, BackendSettings
from orchestrator.executors.local_backend import LocalBackend


def _ray(settings: BackendSettings) -> Backend:
    from orchestrator.executors.ray.ray_backend import (
        RayBackend,
    )  # its package is an optional extra

    return RayBackend(settings)


def _slurm(settings: BackendSettings) -> Backend:
    from orchestrator.executors.slurm.slurm_backend import SlurmBackend

    return SlurmBackend(settings)


BACKENDS: Mapping[str, Callable[[BackendSettings], Backend]] = {
    "local": LocalBackend,
    "ray": _ray,
    "slurm": _slurm,
}


def opener(name: str) -> Callable[[BackendSettings], Backend]:
    """What opens the backend called ``name``. :raises UsageError: there is none; the message names
    the valid ones.
    """
    if name not in BACKENDS:
        raise UsageError(f"--executor {name}: unknown; valid: {', '.join(BACKENDS)}")
    return BACKENDS[name]
