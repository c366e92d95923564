"""Train many reinforcement-learning policies at once, each in its own process.

    import orchestrator
    results = orchestrator.train(["a.xml", "b.xml"], task="forward", total_timesteps=200_000)

Names are imported when they are first used, so that workers do not load them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.api import ExperimentResult, Result, run, train
    from orchestrator.core.errors import OrchestratorError, SpecError, UsageError

__all__ = ["ExperimentResult", "OrchestratorError", "Result", "SpecError", "UsageError", "run", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator import api
    from orchestrator.core import errors

    return getattr(api, name, None) or getattr(errors, name)


def __dir__() -> list[str]:
    return sorted(__all__)
