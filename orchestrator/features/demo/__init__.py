"""The ``demo`` command: three robots that the program brings, trained in half a minute."""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.demo import commands

    return commands.app


FEATURE = Feature(
    name="demo",
    about="demo: three robots that the program brings, trained in half a minute.",
    commands=_commands,
    rank=5,
)
