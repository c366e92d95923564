"""What the file of a robot lacks: the tables ``urdf`` and ``mjcf`` of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ActuatorSettings:
    """What both tables have, with its defaults."""

    frequency: float = 5.0
    """Natural frequency of the servos in Hz."""
    kp: Mapping[str, float] | float | None = None
    """Stiffness of servos in N·m/rad or N/m, of all or by joint or pattern; None: by the frequency."""
    kd: Mapping[str, float] | float | None = None
    """Damping of servos in N·m·s/rad or N·s/m, likewise; None: critical."""
    pose: Mapping[str, float] = field(default_factory=dict)
    """Positions at the start in rad or m, by joint or pattern."""
    effort: Mapping[str, float] | float | None = None
    """Force in N or torque in N·m: a number is for joints whose file gives none, a table for the
    joints that it names."""
    passive: tuple[str, ...] = ()
    """Names or patterns of joints that nothing drives."""


@dataclass(frozen=True, kw_only=True)
class UrdfSettings(ActuatorSettings):
    """The table ``urdf``. Joints without an effort are refused; without a pose they are at 0, or in
    the middle of limits without 0.
    """

    base: Literal["fixed", "floating"] = "fixed"
    """Whether the root link is fixed to the world, as MuJoCo does it, or moves freely."""
    actuators: Literal["motor", "position"] = "motor"
    """What moves revolute, continuous and prismatic joints: a force, or a servo."""
    floor: bool | None = None
    """Whether there is a floor at z = 0; None: with a floating base."""
    collision: Literal["collision", "visual"] = "collision"
    """Which geometry collides."""
    balance_inertia: bool = False
    """Whether a link whose inertia no body can have (A + B < C) gets the mean of A, B and C about
    each axis, as MuJoCo's ``balanceinertia`` does it."""
    asset_paths: tuple[str, ...] = ()
    """Folders in which ``package://`` and relative paths of meshes are looked for, absolute."""

    @property
    def has_floor(self) -> bool:
        return self.base == "floating" if self.floor is None else self.floor


@dataclass(frozen=True, kw_only=True)
class MjcfSettings(ActuatorSettings):
    """The table ``mjcf``. Joints without a pose are where the file has them."""

    actuators: Literal["motor", "position"] | None = None
    """What moves hinges and slides of a robot that has no actuators; None: nothing is added."""
    floor: bool | None = None
    """Whether a floor at z = 0 is added; None: with actuators, for a robot that moves freely in a
    world without geometry."""
