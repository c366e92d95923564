"""The ``compare`` command: ratios with intervals between experiments, benchmarks or machines, and
between jobs of one run directory, which a race trains with further seeds; also as
``orchestrator.compare``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.compare import commands

    return commands.app


def _python() -> Mapping[str, str]:
    return {"compare": "orchestrator.features.compare.api"}


FEATURE = Feature(
    name="compare",
    about="compare: ratios with intervals between experiments, benchmarks or machines, and between jobs.",
    commands=_commands,
    python=_python,
    rank=97,
    belongings=("tests/features/compare",),
)
