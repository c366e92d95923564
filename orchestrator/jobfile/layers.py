"""One of the layers that are laid over each other to make a job's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings written in one place; a later layer wins over an earlier one, key by key."""

    values: Mapping[str, Any]
    where: Callable[[str], str]
    """Place of a dotted key in this layer, for messages."""

    def has(self, dotted: str) -> bool:
        tree: Any = self.values
        for part in dotted.split("."):
            if not isinstance(tree, Mapping) or part not in tree:
                return False
            tree = tree[part]
        return True
