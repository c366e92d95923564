"""`serve`: a page in the browser that shows experiments while they run. It reads run directories,
and nothing else.
"""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.live_page import commands

    return commands.app


FEATURE = Feature(
    name="live_page",
    about="serve: experiments in a browser, while they run.",
    commands=_commands,
    rank=70,
)
