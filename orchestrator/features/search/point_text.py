"""A point of a search for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def value_text(value: Any) -> str:
    """Of one key; numbers have four digits."""
    if isinstance(value, str):
        return value
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def point_text(point: Mapping[str, Any]) -> str:
    """All keys; numbers have four digits."""
    return ", ".join(f"{key} = {value_text(value)}" for key, value in point.items())


def exact_point_text(point: Mapping[str, Any]) -> str:
    """All keys, as they can be copied into a file: with all digits, and texts in quotes."""
    return ", ".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in point.items()
    )
