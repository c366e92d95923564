"""What a URDF lacks and a robot needs: the table ``urdf`` of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class UrdfSettings:
    """The table with its defaults."""

    base: Literal["fixed", "floating"] = "fixed"
    """Whether the root link is fixed to the world, as MuJoCo does it, or moves freely."""
    actuators: Literal["motor", "position"] = "motor"
    """What moves revolute, continuous and prismatic joints: a force, or a servo."""
    frequency: float = 5.0
    """Natural frequency of the servos in Hz."""
    effort: float | None = None
    """Force in N or torque in N·m of joints whose ``<limit>`` gives no effort; None: these are
    refused."""
    passive: tuple[str, ...] = ()
    """Names or patterns of joints that nothing drives."""
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
