"""Job files that are written for the user: ``init`` from robots, ``import-zoo`` from
hyperparameters of RL Baselines3 Zoo.
"""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.authoring import commands

    return commands.app


FEATURE = Feature(
    name="authoring",
    about="init and import-zoo: job files made of robots, or of hyperparameters of others.",
    commands=_commands,
    rank=10,
    belongings=("tests/features/authoring",),
    extras=("zoo",),
)
