"""The command ``init``, which writes a job file for robots."""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.authoring import commands

    return commands.app


FEATURE = Feature(
    name="authoring",
    about="init: job files made of robots.",
    commands=_commands,
    rank=10,
)
