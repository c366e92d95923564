"""Robots of MuJoCo Menagerie by name: ``xml = "menagerie:unitree_go1"``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.core.robot_sources import RobotSource


def _robot_sources() -> Iterable[RobotSource]:
    from orchestrator.features.menagerie.collection import MENAGERIE

    return [MENAGERIE]


FEATURE = Feature(
    name="menagerie",
    about="Robots of MuJoCo Menagerie by name: menagerie:NAME.",
    robot_sources=_robot_sources,
)
