"""The settings of a job from all places where they are written, as checks of several keys see
them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from orchestrator.core.robot_sources import RobotFormat
from orchestrator.core.text import joined
from orchestrator.jobfile.presets import preset_values
from orchestrator.jobfile.validation import Layer
from orchestrator.keys.problems import Problems


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedJob:
    """The jobs of an entry at one point of its matrix."""

    settings: Mapping[str, Any]
    """Of all layers together; of a key in several of them, the value of the last one."""
    where: str
    """The entry of the job, for messages."""
    defaults: Layer
    """``[defaults]``, above the built-in defaults."""
    entry: Layer
    given: Layer
    """What was given with ``--set``."""
    point: Layer
    """The point of the entry's matrix."""
    invalid: Set[str]
    """Keys that are invalid already: what depends on them is not checked."""
    formats: Collection[RobotFormat | None]
    """Those of the robots that its entry has, None for MJCF."""
    problems: Problems
    """Receives what is found."""

    @property
    def own(self) -> Sequence[Layer]:
        """The layers of the job itself, which other jobs do not share."""
        return (self.entry, self.point)

    def sets(self, key: str) -> bool:
        """Whether the job itself sets this dotted key."""
        return any(layer.has(key) for layer in self.own)

    def are_valid(self, *keys: str) -> bool:
        """Whether none of these keys is invalid already, so that what depends on them is checked."""
        return self.invalid.isdisjoint(keys)

    def report(self, keys: Sequence[str], message: str) -> None:
        """Note a problem where the value was written, so that a wrong default is one problem, not
        one per job.

        :param keys: the dotted keys that may be at fault, the likeliest first.
        """
        layers = (self.point, self.given, self.entry, self.defaults)
        preset = Layer(preset_values(self.settings["preset"], self.settings["algo"]), str)
        unset = [key for key in keys if not any(layer.has(key) for layer in layers)]
        of_preset = [key for key in unset if preset.has(key)]
        if of_preset:
            keys = [*keys, "preset"]
            message += (
                f'. The preset "{self.settings["preset"]}" sets {joined(of_preset)}; '
                "a value of your own has precedence"
            )
        for layer in layers:
            for key in keys:
                if layer.has(key):
                    self.problems.add(layer.where(key), message)
                    return
        self.problems.add(self.where, message)
