"""The ``compare`` command: ratios with intervals between experiments, benchmarks or machines."""

from __future__ import annotations

from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.compare import commands

    return commands.app


FEATURE = Feature(
    name="compare",
    about="compare: ratios with intervals between experiments, benchmarks or machines.",
    commands=_commands,
    rank=97,
    belongings=("tests/features/compare",),
)
