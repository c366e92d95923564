"""Train many reinforcement-learning policies at once, each in its own process, and use them.

    import orchestrator
    results = orchestrator.train(["a.xml", "b.xml"], task="forward", total_timesteps=200_000)
    model, env = orchestrator.load(results[0].job_dir)

Names are imported when they are first used, so that workers do not load them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core import gymnasium_ids

if TYPE_CHECKING:  # each name once more as itself, as type checkers want it of a public one
    from orchestrator.api import ExperimentProgress as ExperimentProgress
    from orchestrator.api import ExperimentResult as ExperimentResult
    from orchestrator.api import JobProgress as JobProgress
    from orchestrator.api import Result as Result
    from orchestrator.api import Results as Results
    from orchestrator.api import run as run
    from orchestrator.api import train as train
    from orchestrator.core.errors import AlteredRobotWarning as AlteredRobotWarning
    from orchestrator.core.errors import ChangedError as ChangedError
    from orchestrator.core.errors import OrchestratorError as OrchestratorError
    from orchestrator.core.errors import RunDirError as RunDirError
    from orchestrator.core.errors import RunInterrupted as RunInterrupted
    from orchestrator.core.errors import SpecError as SpecError
    from orchestrator.core.errors import UnfinishedPolicyWarning as UnfinishedPolicyWarning
    from orchestrator.core.errors import UsageError as UsageError
    from orchestrator.features.compare.api import compare as compare
    from orchestrator.features.pool.training_pool import TrainingPool as TrainingPool
    from orchestrator.features.search.api import Search as Search
    from orchestrator.features.search.api import TrialResult as TrialResult
    from orchestrator.worker.policies.job_policy import load as load
    from orchestrator.worker.policies.job_policy import make_env as make_env

_IN_API = (
    "ExperimentProgress",
    "ExperimentResult",
    "JobProgress",
    "Result",
    "Results",
    "run",
    "train",
)
_IN_ERRORS = (
    "AlteredRobotWarning",
    "ChangedError",
    "OrchestratorError",
    "RunDirError",
    "RunInterrupted",
    "SpecError",
    "UnfinishedPolicyWarning",
    "UsageError",
)
_OWN = {
    **dict.fromkeys(_IN_API, "orchestrator.api"),
    **dict.fromkeys(_IN_ERRORS, "orchestrator.core.errors"),
    **dict.fromkeys(("load", "make_env"), "orchestrator.worker.policies.job_policy"),
}
"""Where each public name of the program itself is defined."""

gymnasium_ids.register_where_imported()


@functools.cache
def _of_features() -> Mapping[str, str]:
    """Where each public name of a feature is defined."""
    from orchestrator.core.feature import named_modules

    return named_modules("python")


def _is_submodule(name: str) -> bool:
    path = Path(__file__).with_name(name)
    return path.is_dir() or path.with_suffix(".py").is_file()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in _OWN:
        return getattr(import_module(_OWN[name]), name)
    # Who imports a submodule asks here first, also while features are loaded.
    if name.startswith("_") or _is_submodule(name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _of_features():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_of_features()[name]), name)


def __dir__() -> list[str]:
    return sorted({**_OWN, **_of_features()})
