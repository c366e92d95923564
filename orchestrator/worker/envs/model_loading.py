"""Compiling an MJCF for simulation."""

from __future__ import annotations

import sys
from pathlib import Path

import mujoco
import numpy as np

LIMITS = (
    ("jnt_limited", "jnt_range"),
    ("jnt_actfrclimited", "jnt_actfrcrange"),
    ("tendon_limited", "tendon_range"),
    ("tendon_actfrclimited", "tendon_actfrcrange"),
    ("actuator_ctrllimited", "actuator_ctrlrange"),
    ("actuator_forcelimited", "actuator_forcerange"),
    ("actuator_actlimited", "actuator_actrange"),
)
FEW_GEOMS = 4
"""Geoms of one body up to which testing each is faster than searching a tree of their bounding
boxes."""


def load_model(xml_path: Path | str) -> mujoco.MjModel:
    """Compile an MJCF, with MuJoCo's warnings sent to stderr.

    The path is made absolute because MuJoCo resolves assets of included files differently for a
    relative one. MuJoCo's own warning handler, which also writes ``MUJOCO_LOG.TXT`` into the
    working directory, is replaced. Sleeping is disabled, because the state that MuJoCo can save
    does not say which bodies sleep. Two searches are disabled where they cannot find anything,
    which changes no bit of the physics and saves some percent of the time: for islands (groups of
    bodies without contact) where there is only one kinematic tree, and the mid-phase (collision
    search within a body) where bodies have few geoms.

    :raises ValueError: MuJoCo's own message.
    """
    mujoco.set_mju_user_warning(_print_warning)
    try:
        model = mujoco.MjModel.from_xml_path(str(Path(xml_path).absolute()))
    except UnicodeDecodeError as error:  # the message quotes a name that is not UTF-8
        raise ValueError(error.object.decode(errors="backslashreplace")) from None
    return for_simulation(model)


def for_simulation(model: mujoco.MjModel) -> mujoco.MjModel:
    """Set in ``model``, which is returned, the options that :func:`load_model` sets."""
    _drop_infinite_limits(model)
    model.opt.enableflags &= ~int(mujoco.mjtEnableBit.mjENBL_SLEEP)
    if model.ntree == 1:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    if model.body_geomnum.max() <= FEW_GEOMS:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
    return model


def _drop_infinite_limits(model: mujoco.MjModel) -> None:
    """Infinite limits mean none. One infinite end of a range becomes MuJoCo's largest number."""
    for limited_name, range_name in LIMITS:
        ranges = getattr(model, range_name)
        is_infinite = np.abs(ranges) >= mujoco.mjMAXVAL
        if is_infinite.any():
            is_none = is_infinite.all(axis=1)
            getattr(model, limited_name)[is_none] = 0
            ranges[is_none] = 0.0
            np.clip(ranges, -mujoco.mjMAXVAL, mujoco.mjMAXVAL, out=ranges)


def _print_warning(message: str | bytes) -> None:
    text = message.decode(errors="replace") if isinstance(message, bytes) else message
    print(f"MuJoCo warning: {text.strip()}", file=sys.stderr, flush=True)
