"""Names of what a policy observes and controls, made from a compiled model, by which a trained
policy is carried over.

What has no name in the MJCF is named by its place: a joint by its body, an actuator by what it
moves, and a body by its parent and its place among unnamed siblings. So names of one part do not
change when another part of the robot is added or removed, except those of unnamed siblings, and of
actuators that move a part without a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import mujoco
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from orchestrator.worker.tasks.base import Task

Names = NDArray[np.object_]
"""An array of text."""

_TRANSMISSIONS = {
    mujoco.mjtTrn.mjTRN_TENDON: "tendon",
    mujoco.mjtTrn.mjTRN_SITE: "site",
    mujoco.mjtTrn.mjTRN_BODY: "body",
}


def of_task(task: Task, size: int) -> list[str] | None:
    """The names of what a policy observes of ``task`` at once; None where they have none.

    :param size: how many observations there are.
    """
    if task.observed_by is None:
        return of_full_observation(task, size)
    names = list(task.observed_by.terms.names)
    return names if len(names) == size else None


def of_full_observation(task: Task, size: int) -> list[str] | None:
    """The names that ``task`` gives its own observations; None where they have none.

    Names of a class do not count for a class of the user that is derived from it and overrides
    ``observe`` alone: its observations are others. Nor do names whose number is not ``size``.
    """
    if is_overridden(task, "observation_names"):
        return None
    given = task.observation_names()
    if given is None:
        return None
    names = [str(name) for name in given]
    return names if len(names) == size else None


def is_overridden(task: Task, method: str) -> bool:
    """Whether a class of the user has an ``observe`` of its own, and no ``method`` that says
    something about it.
    """
    for kind in type(task).__mro__:
        if method in vars(kind):
            return False
        if "observe" in vars(kind) and not kind.__module__.startswith("orchestrator."):
            return True
    return False


def joints(model: mujoco.MjModel) -> Names:
    """``(njnt,)``"""
    return np.array([_joint(model, joint) for joint in range(model.njnt)], object)


def positions(model: mujoco.MjModel) -> Names:
    """``(nq,)``"""
    widths = np.diff(model.jnt_qposadr, append=model.nq)
    return _numbered_names(
        (f"{_joint(model, joint)} position", width) for joint, width in enumerate(widths)
    )


def velocities(model: mujoco.MjModel) -> Names:
    """``(nv,)``"""
    widths = np.diff(model.jnt_dofadr, append=model.nv)
    return _numbered_names(
        (f"{_joint(model, joint)} velocity", width) for joint, width in enumerate(widths)
    )


def controls(model: mujoco.MjModel) -> Names:
    """``(nu,)``"""
    return _numbered_names(
        (_actuator(model, number), width) for number, width in enumerate(model.actuator_ctrlnum)
    )


def activations(model: mujoco.MjModel) -> Names:
    """``(na,)``"""
    widths = enumerate(model.actuator_actnum)
    return _numbered_names(
        (f"{_actuator(model, number)} activation", width) for number, width in widths
    )


def of_bodies(model: mujoco.MjModel, quantity: str, width: int) -> Names:
    """``((nbody - 1) · width,)``, without the world."""
    return _numbered_names(
        (f"{_body(model, body)} {quantity}", width) for body in range(1, model.nbody)
    )


def prefixed(prefix: str, names: Iterable[str]) -> Names:
    return np.array([f"{prefix} {name}" for name in names], object)


def _joint(model: mujoco.MjModel, joint: int) -> str:
    body = int(model.jnt_bodyid[joint])
    return (
        model.joint(joint).name or f"{_body(model, body)} joint {joint - model.body_jntadr[body]}"
    )


def _actuator(model: mujoco.MjModel, actuator: int) -> str:
    if name := model.actuator(actuator).name:
        return str(name)
    kind = mujoco.mjtTrn(int(model.actuator_trntype[actuator]))
    target = int(model.actuator_trnid[actuator, 0])
    if kind in (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT):
        return f"actuator of {_joint(model, target)}"
    moved = getattr(model, _TRANSMISSIONS[kind])(target).name if kind in _TRANSMISSIONS else ""
    return f"actuator of {moved}" if moved else f"actuator {actuator}"


def _body(model: mujoco.MjModel, body: int) -> str:
    if name := model.body(body).name:
        return str(name)
    parent = int(model.body_parentid[body])
    alike = [
        other
        for other in np.flatnonzero(model.body_parentid == parent).tolist()
        if not model.body(other).name
    ]
    return f"{_body(model, parent)}/{alike.index(body)}"


def _numbered_names(parts: Iterable[tuple[str, int]]) -> Names:
    """Each name as often as its width: numbered from 0 where that is above 1, and with a ``+``
    behind it where a name comes again.
    """
    names: dict[str, None] = {}
    for name, width in parts:
        for number in range(width):
            each = f"{name} {number}" if width > 1 else name
            while each in names:
                each += "+"
            names[each] = None
    return np.array(list(names), object)
