"""The ``advise`` command: what changes to a robot's physics would bring in speed, and what they would
change in its motion.
"""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.advice import commands

    return commands.app


FEATURE = Feature(
    name="advice",
    about="advise: what changes to the physics of robots would bring in speed, and in their motion.",
    commands=_commands,
    rank=81,
    belongings=("tests/features/advice", "docs/advice.md"),
)
