"""What the worker's part of a feature returns that writes robots in other files as MJCF, which is then
examined and trained like any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.messages import RobotSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRobot:
    """The robot as MJCF."""

    xml: Path
    added: Sequence[str] = ()
    """What was added to the file of the user, in sentences."""
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    outside: str | None = None
    """Which of its files lies outside of the allowed folders, if it is examined alone."""
    chosen: Sequence[RobotSetting] = ()
    """Settings that the request leaves out, and that were chosen by the robot, if it is examined
    alone."""
    if_diverging: Sequence[RobotSetting] = ()
    """Settings with which physics may be stable where it diverges with those of the request."""
