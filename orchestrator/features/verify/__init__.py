"""The ``verify`` command: proof that a job's training depends on nothing but its seed."""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.verify import commands

    return commands.app


FEATURE = Feature(
    name="verify",
    about="verify: jobs train the same policy alone, beside others, and killed and resumed.",
    commands=_commands,
    rank=85,
    belongings=("tests/features/verify",),
)
