"""Train many reinforcement-learning policies at once, each in its own process, and use them.

    import orchestrator
    results = orchestrator.train(["a.xml", "b.xml"], task="forward", total_timesteps=200_000)
    model, env = orchestrator.load(results[0].job_dir)

Names are imported when they are first used, so that workers do not load them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from orchestrator.core import gymnasium_ids

if TYPE_CHECKING:
    from orchestrator.api import (
        ExperimentProgress,
        ExperimentResult,
        JobProgress,
        Result,
        Results,
        run,
        train,
    )
    from orchestrator.core.errors import (
        AlteredRobotWarning,
        ChangedError,
        OrchestratorError,
        RunDirError,
        RunInterrupted,
        SpecError,
        UnfinishedPolicyWarning,
        UsageError,
    )
    from orchestrator.pool.training_pool import TrainingPool
    from orchestrator.search_api import Search, TrialResult
    from orchestrator.worker.policies.job_policy import load, make_env

__all__ = [
    "AlteredRobotWarning",
    "ChangedError",
    "ExperimentProgress",
    "ExperimentResult",
    "JobProgress",
    "OrchestratorError",
    "Result",
    "Results",
    "RunDirError",
    "RunInterrupted",
    "Search",
    "SpecError",
    "TrainingPool",
    "TrialResult",
    "UnfinishedPolicyWarning",
    "UsageError",
    "load",
    "make_env",
    "run",
    "train",
]

_IN_API = (
    "ExperimentProgress",
    "ExperimentResult",
    "JobProgress",
    "Result",
    "Results",
    "run",
    "train",
)
_MODULES = {
    **dict.fromkeys(_IN_API, "orchestrator.api"),
    **dict.fromkeys(("Search", "TrialResult"), "orchestrator.search_api"),
    "TrainingPool": "orchestrator.pool.training_pool",
    **dict.fromkeys(("load", "make_env"), "orchestrator.worker.policies.job_policy"),
}
"""Where a name is defined, if not in ``orchestrator.core.errors``."""

gymnasium_ids.announce()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "orchestrator.core.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
