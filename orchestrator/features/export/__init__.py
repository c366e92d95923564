"""The ``export`` command: policies as files for other programs, such as a robot's controller; and how
``play --policy`` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.feature import Feature


def _commands() -> Any:
    from orchestrator.features.export import commands

    return commands.app


def _policy_readers() -> Mapping[str, str]:
    from orchestrator.features.export.formats import READABLE

    return dict.fromkeys(READABLE, "orchestrator.features.export.worker.policy_files")


FEATURE = Feature(
    name="export",
    about="export: policies as ONNX, NumPy arrays or a C header, for other programs.",
    commands=_commands,
    rank=31,
    policy_readers=_policy_readers,
)
