"""Finding and making an environment that is not a built-in task, the same way for preflight and
training.

gymnasium is imported only for an ``env`` id; torch and stable-baselines3 never.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.core import gymnasium_ids


class EntryPointError(Exception):
    """The entry point names nothing that can be called; the message says what is missing."""


def make(
    *,
    env: str | None,
    entry_point: str | None,
    xml: str | None,
    seed: int,
    env_kwargs: Mapping[str, Any],
) -> Any:
    """Call ``entry_point``, which may return anything, or else ``gymnasium.make(env)``.

    :raises EntryPointError: see :func:`load`. Errors of the environment itself pass through.
    """
    if entry_point is not None:
        return load(entry_point)(xml=xml, seed=seed, **env_kwargs)
    import gymnasium

    assert env is not None
    robot: dict[str, Any] = {} if xml is None else {"xml_file": xml}
    gymnasium_ids.register(gymnasium)
    return gymnasium.make(env, **robot, **env_kwargs)


def load(entry_point: str) -> Callable[..., Any]:
    """Return what ``"package.module:make_env"`` or ``"package.module:Class.method"`` names.

    :raises EntryPointError: there is no such module, or nothing to call in it. Errors inside the
        module pass through.
    """
    module_name, _, path = entry_point.partition(":")
    if not (module_name and path):
        raise EntryPointError('expected "package.module:make_env"')
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            searched = f"looked in {sys.path[0] or 'the current directory'}, and among the installed packages"
            raise EntryPointError(f"there is no module {error.name!r} ({searched})") from None
        raise
    for name in path.split("."):
        target = getattr(target, name, None)
    if not callable(target):
        raise EntryPointError(f"module {module_name!r} has nothing to call named {path!r}")
    return target  # type: ignore[no-any-return]
