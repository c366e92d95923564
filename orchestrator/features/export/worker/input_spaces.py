"""What goes into a policy that can be exported: a vector of real numbers, or a ``Dict`` of them."""

from __future__ import annotations

import re
from typing import Any

from gymnasium import spaces

from orchestrator.features.export.worker.exported_policy import ACTION, CTRL, ExportError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
"""Of an input, in every format: C has no others."""
_CURE = (
    "let the environment give them as vectors, such as by gymnasium.wrappers.FlattenObservation, which makes one of "
    "all, and train again; orchestrator.load gives the policy to a script, and play shows it"
)


def is_vector(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def entries_of(space: spaces.Space[Any]) -> dict[str, int]:
    """The entries of a ``Dict`` observation with their sizes, in the order of the network; none of
    a vector.

    :raises ExportError: it is neither, or an entry cannot be an input.
    """
    if not isinstance(space, spaces.Dict):
        if not is_vector(space):
            raise ExportError(
                f"its observations are {space}; only those that are a vector of real numbers, or a Dict of vectors, "
                f"can be exported: {_CURE}"
            )
        return {}
    entries: dict[str, int] = {}
    for name, entry in space.spaces.items():
        if not is_vector(entry):
            raise ExportError(
                f"its observation {name!r} is {entry}, and of a Dict all have to be vectors of real numbers: {_CURE}"
            )
        if not _NAME.fullmatch(name) or name in (ACTION, CTRL):
            raise ExportError(
                f"its observation {name!r} would be an input of this name; expected one of letters, digits and _ "
                f"that begins with a letter and is not {ACTION} or {CTRL}: rename it in the environment, and train "
                "again"
            )
        assert entry.shape is not None
        entries[name] = int(entry.shape[0])
    return entries
