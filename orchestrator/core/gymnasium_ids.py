"""The built-in tasks as environments of gymnasium: their ids, and their registration."""

from __future__ import annotations

import sys
from typing import Any

from orchestrator.core.task_names import TASKS

ENTRY_POINT = "orchestrator.worker.policies.task_env:TaskEnv"


def env_id(task: str) -> str:
    return f"orchestrator/{task}-v0"


def register(gymnasium: Any) -> None:
    """Register the tasks that are not registered yet. :param gymnasium: the module."""
    for task in TASKS:
        if env_id(task) not in gymnasium.registry:
            gymnasium.register(env_id(task), ENTRY_POINT, kwargs={"task": task})


def register_where_imported() -> None:
    """Register the tasks if this process has imported gymnasium; it is not imported for that."""
    if "gymnasium" in sys.modules:
        register(sys.modules["gymnasium"])
