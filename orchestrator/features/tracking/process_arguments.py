"""The arguments of the process that tells trackers of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TIME_LIMIT_S = 30.0
"""How long the end of a run waits for its trackers."""


def settings(name: str, trackers: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the second argument: the name of the experiment and its trackers with their options."""
    return json.dumps({"name": name, "trackers": trackers}, default=dict)
