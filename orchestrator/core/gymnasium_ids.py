"""Makes ``gymnasium.make("orchestrator/forward-v0", xml=…)`` work after ``import orchestrator``.

The other built-in tasks have such ids too. gymnasium is never imported for it: where it is imported
after this package, its import ends with the registration.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from orchestrator.core.task_names import TASKS

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

ENTRY_POINT = "orchestrator.worker.policies.task_env:TaskEnv"
LIBRARY = "gymnasium"


def env_id(task: str) -> str:
    return f"orchestrator/{task}-v0"


def announce() -> None:
    """Register the tasks now if gymnasium is imported already, otherwise at the end of its
    import.
    """
    if LIBRARY in sys.modules:
        _register(sys.modules[LIBRARY])
    elif not any(isinstance(finder, RegistrationFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, RegistrationFinder())


def _register(gymnasium: Any) -> None:
    for task in TASKS:
        if env_id(task) not in gymnasium.registry:
            gymnasium.register(env_id(task), ENTRY_POINT, kwargs={"task": task})


class RegistrationFinder:
    """Finds gymnasium as the other finders do, with a loader that registers the tasks
    afterwards.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != LIBRARY:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = RegistrationLoader(spec.loader, self)  # type: ignore[assignment]
        return spec


class RegistrationLoader:
    """Loads gymnasium with its own loader, which the module then names as its loader."""

    def __init__(self, loader: Any, finder: RegistrationFinder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
