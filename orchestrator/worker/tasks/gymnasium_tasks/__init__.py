"""Gymnasium's MuJoCo v5 environments as tasks: ``gymnasium:Ant-v5`` and seven others.

Over the batched simulation each gives the same observations, rewards, terminations and truncations
as gymnasium's own environment and, from a random generator in the same state, the same starting
states. ``tests/worker/tasks/test_gymnasium_tasks.py`` compares them. The formulas are those of
gymnasium's documentation (https://gymnasium.farama.org/environments/mujoco/).
"""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path
from typing import Any

from orchestrator.core.task_names import GYMNASIUM_TASKS
from orchestrator.worker.tasks.base import load_built_in
from orchestrator.worker.tasks.gymnasium_tasks.base import GymnasiumTask
from orchestrator.worker.tasks.task_options import TaskError


def find(name: str) -> type[GymnasiumTask]:
    """:raises TaskError: there is no such environment; the message lists them."""
    if name in GYMNASIUM_TASKS:
        return load_built_in(GYMNASIUM_TASKS[name])  # type: ignore[no-any-return]
    near = difflib.get_close_matches(name, GYMNASIUM_TASKS, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    raise TaskError(
        f'unknown task "{name}"; {hint}the gymnasium environments are: {", ".join(GYMNASIUM_TASKS)}'
    )


def default_xml(name: str) -> Path:
    """The robot that gymnasium itself uses, in the installed package (which is not imported for
    it).

    :raises ValueError: there is no such environment, or gymnasium is not installed.
    """
    asset = find(name).asset
    package = importlib.util.find_spec("gymnasium")
    if package is None or not package.submodule_search_locations:
        raise ValueError(
            f'task "{name}": gymnasium, which brings its robot {asset}, is not installed'
        )
    return Path(package.submodule_search_locations[0]) / "envs" / "mujoco" / "assets" / asset


def __getattr__(name: str) -> Any:
    """A task by the name of its class, for a user's task that derives from it."""
    for path in GYMNASIUM_TASKS.values():
        if path.endswith(f":{name}"):
            return load_built_in(path)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
