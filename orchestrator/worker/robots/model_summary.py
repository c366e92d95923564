"""Summary of a compiled robot: sizes, structure, names of parts, memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import mujoco
import numpy as np

from orchestrator.worker.tasks.base import joint_type
from orchestrator.worker.tasks.root import BALL, FREE, SLIDE
from orchestrator.worker.tasks.structure import joints_of

MIB = 1 << 20


def summarize(model: mujoco.MjModel, data: mujoco.MjData) -> dict[str, Any]:
    """What ``check`` shows for a robot; values are numbers, text, lists of text, and counts by
    kind.
    """
    return {
        **{
            name: getattr(model, name)
            for name in ("nq", "nv", "nu", "na", "nbody", "ngeom", "nmesh")
        },
        "root": root_type(model),
        "actuators": dict(
            Counter(actuator_kind(model, number) for number in range(model.nactuator))
        ),
        "keyframes": [model.key(number).name or str(number) for number in range(model.nkey)],
        "sensors": [_sensor_name(model, number) for number in range(model.nsensor)],
        "cameras": [model.cam(number).name or str(number) for number in range(model.ncam)],
        "mass_kg": float(model.body_mass.sum()),
        "timestep_s": float(model.opt.timestep),
        "integrator": mujoco.mjtIntegrator(int(model.opt.integrator))
        .name.removeprefix("mjINT_")
        .lower(),
        "model_mib": mujoco.mj_sizeModel(model) / MIB,
        "data_mib": (data.nbuffer + data.narena) / MIB,
        "bytes_per_env": 8 * mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION),
    }


def root_type(model: mujoco.MjModel) -> str:
    """How the largest moving tree is connected to the world.

    ``free``; ``planar`` (two or three slides and a hinge); ``slide`` (on a rail); ``ball``;
    ``fixed`` (bolted to the world, or turning about a fixed hinge); ``none`` where nothing moves.
    """
    if model.nv == 0:
        return "none"
    root = int(np.bincount(model.body_rootid[model.dof_bodyid]).argmax())
    kinds = [joint_type(model, joint) for joint in joints_of(model, root)]
    slides = kinds.count(SLIDE)
    if FREE in kinds:
        return "free"
    if slides >= 2 and len(kinds) > slides:
        return "planar"
    if slides:
        return "slide"
    return "ball" if BALL in kinds else "fixed"


_DYNAMICS = {mujoco.mjtDyn.mjDYN_INTEGRATOR: "intvelocity", mujoco.mjtDyn.mjDYN_MUSCLE: "muscle"}
_GAINS = {
    mujoco.mjtGain.mjGAIN_MUSCLE: "muscle",
    mujoco.mjtGain.mjGAIN_DCMOTOR: "dcmotor",
    mujoco.mjtGain.mjGAIN_PID: "pid",
    mujoco.mjtGain.mjGAIN_SO3: "orientation",
    mujoco.mjtGain.mjGAIN_USER: "user",
}


def actuator_kind(model: mujoco.MjModel, number: int) -> str:
    """The MJCF element that gives such an actuator; ``general`` where no special one does.

    The compiled model has only gain, bias and activation; what each element sets them to is
    documented in MuJoCo's XML reference, section "actuator".
    """
    gain = mujoco.mjtGain(int(model.actuator_gaintype[number]))
    bias = mujoco.mjtBias(int(model.actuator_biastype[number]))
    dynamics = mujoco.mjtDyn(int(model.actuator_dyntype[number]))
    gains = model.actuator_gainprm[number]
    biases = model.actuator_biasprm[number]
    if int(model.actuator_trntype[number]) == int(mujoco.mjtTrn.mjTRN_BODY):
        return "adhesion"
    if gain in _GAINS:
        return _GAINS[gain]
    if dynamics in _DYNAMICS:
        return _DYNAMICS[dynamics]
    if gain == mujoco.mjtGain.mjGAIN_AFFINE:
        return (
            "damper"
            if bias == mujoco.mjtBias.mjBIAS_NONE and gains[2] < 0 == gains[0]
            else "general"
        )
    if bias == mujoco.mjtBias.mjBIAS_NONE:
        return "motor" if dynamics == mujoco.mjtDyn.mjDYN_NONE else "general"
    if bias != mujoco.mjtBias.mjBIAS_AFFINE:
        return "general"
    if gains[0] != 0 and np.isclose(biases[1], -gains[0]):
        return "position"
    if gains[0] != 0 and biases[1] == 0 and np.isclose(biases[2], -gains[0]):
        return "velocity"
    return "cylinder" if dynamics == mujoco.mjtDyn.mjDYN_FILTER else "general"


def _sensor_name(model: mujoco.MjModel, number: int) -> str:
    kind = mujoco.mjtSensor(int(model.sensor_type[number])).name.removeprefix("mjSENS_").lower()
    return model.sensor(number).name or f"{kind} {number}"
