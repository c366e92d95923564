"""Actuators of a compiled model: what kind each of them is, and what joint it acts on."""

from __future__ import annotations

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.joints import SCALAR
from orchestrator.worker.mjmodel.structure import Floats, posed_data

_PID_INPUTS = {1: "pos", 2: "vel", 4: "ff"}
"""Bit of ``actuator_ctrlspec`` → the input of ``<pid>``, in the order of its controls."""
_ON_JOINT = (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))


def actuator_kind(model: mujoco.MjModel, number: int) -> str:
    """The MJCF element that gives such an actuator; ``general`` for rare ones.

    The compiled model has only gain, bias and activation; what each element sets them to is
    documented in MuJoCo's XML reference, section "actuator".
    """
    gain = mujoco.mjtGain(int(model.actuator_gaintype[number]))
    bias = mujoco.mjtBias(int(model.actuator_biastype[number]))
    dynamics = mujoco.mjtDyn(int(model.actuator_dyntype[number]))
    strength = model.actuator_gainprm[number, 0]
    biases = model.actuator_biasprm[number]
    if int(model.actuator_trntype[number]) == int(mujoco.mjtTrn.mjTRN_BODY):
        return "adhesion"
    if gain == mujoco.mjtGain.mjGAIN_PID:
        return "pid"
    if gain == mujoco.mjtGain.mjGAIN_MUSCLE or dynamics == mujoco.mjtDyn.mjDYN_MUSCLE:
        return "muscle"
    if gain != mujoco.mjtGain.mjGAIN_FIXED:
        return "general"
    if bias == mujoco.mjtBias.mjBIAS_NONE and dynamics == mujoco.mjtDyn.mjDYN_NONE:
        return "motor"
    if bias != mujoco.mjtBias.mjBIAS_AFFINE:
        return "general"
    if dynamics == mujoco.mjtDyn.mjDYN_INTEGRATOR:
        return "intvelocity"
    if strength != 0 and np.isclose(biases[1], -strength):
        return "position"
    if strength != 0 and biases[1] == 0 and np.isclose(biases[2], -strength):
        return "velocity"
    return "general"


def position_servos(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """``(nactuator,)`` which actuators are position servos: force = kp · (ctrl − position) − …

    Actuators with several controls (``pid``) are excluded, because not all of their controls are
    positions.
    """
    return np.array(
        [
            actuator_kind(model, number) == "position"
            and model.actuator_gainprm[number, 0] > 0
            and model.actuator_ctrlnum[number] == 1
            for number in range(model.nactuator)
        ],
        bool,
    )


def control_inputs(model: mujoco.MjModel) -> list[str]:
    """Return for each control which input of a ``<pid>`` it is (``pos``, ``vel`` or ``ff``); empty
    text for controls of other actuators.
    """
    inputs: list[str] = []
    for actuator in range(model.nactuator):
        if actuator_kind(model, actuator) == "pid":
            spec = int(model.actuator_ctrlspec[actuator])
            inputs += [name for bit, name in _PID_INPUTS.items() if spec & bit]
        else:
            inputs += [""] * int(model.actuator_ctrlnum[actuator])
    return inputs


def actuator_of_control(model: mujoco.MjModel) -> NDArray[np.intp]:
    """``(nu,)`` the actuator of each control."""
    return np.repeat(np.arange(model.nactuator), model.actuator_ctrlnum)


def control_name(model: mujoco.MjModel, control: int) -> str:
    """Return the name of a control's actuator in quotes, or its number if it has no name."""
    actuator = int(actuator_of_control(model)[control])
    return f"'{model.actuator(actuator).name or actuator}'"


def lengths_in_pose(model: mujoco.MjModel, pose: Floats) -> Floats:
    """``(nu,)`` the length of each control's actuator in ``pose`` ``(nq,)``: the control with which a
    position servo holds it.
    """
    lengths = posed_data(model, pose).actuator_length
    return np.array(lengths[model.actuator_outadr[actuator_of_control(model)]])


def position_controls(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """``(nu,)`` which controls are target positions: of position servos, and the input ``pos`` of
    ``<pid>``.
    """
    is_position: NDArray[np.bool_] = position_servos(model)[actuator_of_control(model)]
    is_position |= np.array([name == "pos" for name in control_inputs(model)], bool)
    return is_position


def scalar_joints(model: mujoco.MjModel) -> NDArray[np.intp]:
    """``(nactuator,)`` the hinge or slide that each actuator acts on, by ``joint`` or by
    ``jointinparent``, which is the same there; -1 for any other transmission.
    """
    target = np.array(model.actuator_trnid[:, 0], np.intp)
    joints = np.where(np.isin(model.actuator_trntype, _ON_JOINT), target, -1)
    is_on_joint = joints >= 0
    is_scalar = np.zeros(len(joints), bool)
    is_scalar[is_on_joint] = np.isin(model.jnt_type[joints[is_on_joint]], SCALAR)
    return np.where(is_scalar, joints, -1)


def scalar_gear(model: mujoco.MjModel, number: int) -> float:
    """The ratio of the length of actuator ``number`` to the position of its hinge or slide.

    MjModel has a gear for each output, and actuators with several outputs (``orientation``) may
    come before this one.
    """
    return float(model.actuator_gear[model.actuator_outadr[number], 0])
