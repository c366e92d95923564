"""One environment that is not a built-in task, found and made the same way for preflight as for training.

gymnasium is imported only where it is asked for an id; torch and stable-baselines3 never.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from typing import Any


class EntryPointError(Exception):
    """There is nothing to call under this name; the message says what is missing."""


def make(*, env: str | None, entry_point: str | None, xml: str | None, seed: int, env_kwargs: Mapping[str, Any]) -> Any:
    """Call the entry point, or else ask gymnasium; what comes back may be anything in the former case.

    :raises EntryPointError: see :func:`load`; and whatever the environment itself raises.
    """
    if entry_point is not None:
        return load(entry_point)(xml=xml, seed=seed, **env_kwargs)
    import gymnasium

    assert env is not None
    robot: dict[str, Any] = {} if xml is None else {"xml_file": xml}
    return gymnasium.make(env, **robot, **env_kwargs)


def load(entry_point: str) -> Callable[..., Any]:
    """``"package.module:make_env"`` or ``"package.module:Class.method"`` → what it names.

    :raises EntryPointError: no such module, or nothing to call there. (An import that fails further in is left
        as it is.)
    """
    module_name, colon, path = entry_point.partition(":")
    if not (module_name and colon and path):
        raise EntryPointError('expected "package.module:make_env"')
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise EntryPointError(f"there is no module {error.name!r}") from None
        raise
    holder = found
    for name in path.split("."):
        holder, found = found, getattr(found, name, None)
        if found is None:
            break
    if not callable(found):
        there = [known for known in dir(holder) if callable(getattr(holder, known, None))]
        near = difflib.get_close_matches(name, there, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise EntryPointError(f"module {module_name!r} has nothing to call named {path!r}{hint}")
    return found  # type: ignore[no-any-return]
