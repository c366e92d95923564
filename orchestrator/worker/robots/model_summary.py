"""Summary of a compiled robot: sizes, structure, names of parts, memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import mujoco

from orchestrator.worker.mjmodel.actuators import actuator_kind
from orchestrator.worker.mjmodel.root import root_type

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


def _sensor_name(model: mujoco.MjModel, number: int) -> str:
    kind = mujoco.mjtSensor(int(model.sensor_type[number])).name.removeprefix("mjSENS_").lower()
    return model.sensor(number).name or f"{kind} {number}"
