"""The ``selftest`` command: a campaign of faults against real trainings, on the user's machine and
file system.
"""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.selftest import commands

    return commands.app


FEATURE = Feature(
    name="selftest",
    about="selftest: faults against small trainings, on this machine.",
    commands=_commands,
    rank=95,
    belongings=("tests/features/selftest",),
)
