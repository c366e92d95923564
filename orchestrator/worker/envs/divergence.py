"""Diverged physics: recognised by MuJoCo's warning counters, described by robot, time and joint.

MuJoCo resets an unstable simulation by itself and continues, so the state may look finite again
after the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.runtime.failures import Diverged

if TYPE_CHECKING:
    import mujoco

    from orchestrator.worker.mjmodel.structure import Floats


class PhysicsDiverged(OrchestratorError, Diverged):
    """A simulated state is not finite; a retry would diverge again. The message names robot, time
    and joint.
    """


HINT = 'on_divergence = "end-episode" ends only the episode in which physics diverges'
REMEDIES = "a smaller timestep, weaker actuators or more damping or armature usually help"


def quantities() -> dict[mujoco.mjtWarning, str]:
    """MuJoCo's warnings of divergence, each with the quantity that it is about."""
    import mujoco

    return {
        mujoco.mjtWarning.mjWARN_BADQPOS: "position",
        mujoco.mjtWarning.mjWARN_BADQVEL: "velocity",
        mujoco.mjtWarning.mjWARN_BADQACC: "acceleration",
        mujoco.mjtWarning.mjWARN_BADCTRL: "control",
    }


def describe(model: mujoco.MjModel, warning: mujoco.mjtWarning, index: int) -> str:
    """``"velocity of joint 'knee'"``: what entry ``index`` of the warning's array stands for.

    :param index: an address in ``qpos`` or ``qvel``, or the number of a control.
    """
    import numpy as np

    from orchestrator.worker.mjmodel.actuators import control_name
    from orchestrator.worker.mjmodel.joints import joint_name

    quantity = quantities()[warning]
    if quantity == "control":
        return f"{quantity} of actuator {control_name(model, index)}"
    if quantity == "position":
        joint = int(np.searchsorted(model.jnt_qposadr, index, "right")) - 1
    else:
        joint = int(model.dof_jntid[index])
    return f"{quantity} of joint {joint_name(model, joint)}"


def describe_state(model: mujoco.MjModel, qpos: Floats, qvel: Floats) -> str:
    """The first velocity ``(nv,)`` or position ``(nq,)`` that is not finite."""
    import mujoco
    import numpy as np

    warnings = (mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQPOS)
    for warning, values in zip(warnings, (qvel, qpos), strict=True):
        is_bad = ~np.isfinite(values)
        if is_bad.any():
            return describe(model, warning, int(is_bad.argmax()))
    return "the state"
