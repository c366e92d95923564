"""A robot's physics tried out: a few simulated seconds at rest, of no, random and extreme actions.

Bounded by simulated and by CPU time (so that other load makes no difference), whichever is over first.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.robots.model_checks import Findings
from orchestrator.worker.tasks.actions import ActionMap, Floats
from orchestrator.worker.tasks.base import joint_name

SIMULATED_S = 3.0
"""Of each kind of action."""
HOLD_S = 0.02
"""How long a random action is held; less where the time step is tiny."""
HOLD_EXTREME_S = 0.1
SETTLED_S = 0.25
"""What a start in violated limits throws into the robot by then does not count as growing energy."""
SHORTER = (2, 5, 20)
"""Divisors of the timestep that are tried out where physics diverged."""
MOST_STEPS = 5_000
"""Of a kind of action: more are of no use where the time step is tiny."""
_BAD = tuple(
    int(kind)
    for kind in (
        mujoco.mjtWarning.mjWARN_BADQPOS,
        mujoco.mjtWarning.mjWARN_BADQVEL,
        mujoco.mjtWarning.mjWARN_BADQACC,
        mujoco.mjtWarning.mjWARN_BADCTRL,
    )
)
_FULL = (int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL))
Controls = Callable[[np.random.Generator], Floats]
"""``(nu,)`` for the next moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What one kind of action led to."""

    steps: int
    stepping_s: float
    """CPU seconds in MuJoCo alone."""
    cpu_s: float
    bad: str | None
    """Time and place at which physics diverged."""
    energy_growth: float
    """Joules gained at most, once it has settled; 0 where energy is not counted."""


def try_out(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    start: Floats,
    rest: Floats,
    actions: ActionMap | None,
    cpu_s: float,
    findings: Findings,
) -> float | None:
    """Adds to ``findings``; returns physics steps per second under random actions; None where physics diverges.

    :param start: ``(nq,)`` pose from which every stretch starts, at rest.
    :param rest: ``(nu,)`` control that asks for nothing.
    :param actions: how a policy's actions become controls; None without actuators.
    """
    with _passive(model):
        alone = _stretch(model, data, start, lambda _: rest, HOLD_S, cpu_s / 5)
    if alone.bad:
        findings.problems.append(_diverged("with no actuator at work", alone, model, data, start, lambda _: rest))
        return None
    scale = _energy_scale(model)
    if alone.energy_growth > scale:
        findings.warnings.append(
            f"energy explodes: with no actuator at work it grows by {alone.energy_growth:.3g} J (lifting the robot by "
            f"its own size takes {scale:.3g} J); a shorter timestep or softer springs help"
        )
    if actions is None:
        tell_warnings(data, findings)
        return alone.steps / max(alone.stepping_s, 1e-9)
    low, high = (np.nan_to_num(bound, posinf=1.0, neginf=-1.0) for bound in (actions.low, actions.high))

    def random(rng: np.random.Generator) -> Floats:
        return np.asarray(actions.ctrl(actions.taken(rng.uniform(low, high)[None]))[0], np.float64)

    limited = model.actuator_ctrllimited.astype(bool)
    least = np.where(limited, model.actuator_ctrlrange[:, 0], -1.0)
    most = np.where(limited, model.actuator_ctrlrange[:, 1], 1.0)

    def extreme(rng: np.random.Generator) -> Floats:
        return np.where(rng.integers(0, 2, model.nu), most, least)

    still = _stretch(model, data, start, lambda _: rest, HOLD_S, cpu_s / 5)
    if still.bad:
        findings.problems.append(_diverged("with no action", still, model, data, start, lambda _: rest))
        return None
    full = tell_warnings(data, findings)
    moved = _stretch(model, data, start, random, HOLD_S, 2 * cpu_s / 5)
    if moved.bad:
        findings.problems.append(_diverged("under random actions", moved, model, data, start, random))
        return None
    full = full or tell_warnings(data, findings)
    thrown = _stretch(model, data, start, extreme, HOLD_EXTREME_S, cpu_s / 5)
    if thrown.bad:
        findings.warnings.append(_diverged("under extreme actions", thrown, model, data, start, extreme))
    elif not full:
        tell_warnings(data, findings)
    return moved.steps / max(moved.stepping_s, 1e-9)


def _stretch(
    model: mujoco.MjModel, data: mujoco.MjData, start: Floats, controls: Controls, hold_s: float, cpu_s: float
) -> Stretch:
    """From ``start`` until the time is over or physics diverges."""
    step_s = float(model.opt.timestep)
    held = max(1, min(round(hold_s / step_s), MOST_STEPS // 10))
    count = min(round(SIMULATED_S / step_s), MOST_STEPS) // held
    rng = np.random.default_rng(0)
    mujoco.mj_resetData(model, data)
    data.qpos[:] = start
    mujoco.mj_forward(model, data)
    at_start = float(data.energy.sum())
    growth, bad, steps, stepping_s = 0.0, None, 0, 0.0
    begun = time.thread_time()
    for _ in range(max(1, count)):
        data.ctrl[:] = controls(rng)
        before, started = data.time, time.thread_time()
        mujoco.mj_step(model, data, nstep=held)
        stepping_s += time.thread_time() - started
        steps += held
        bad = _bad(model, data, before)
        if bad or time.thread_time() - begun > cpu_s:
            break
        if data.time < SETTLED_S:
            at_start = max(at_start, float(data.energy.sum()))
        growth = max(growth, float(data.energy.sum()) - at_start)
    cpu_s = time.thread_time() - begun
    return Stretch(steps=steps, stepping_s=stepping_s, cpu_s=cpu_s, bad=bad, energy_growth=growth)


def _bad(model: mujoco.MjModel, data: mujoco.MjData, before: float) -> str | None:
    """When and where physics has diverged; MuJoCo starts again by itself then, so its warnings are asked too."""
    for kind in _BAD:
        if data.warning.number[kind]:
            index = int(data.warning.lastinfo[kind])
            if kind == int(mujoco.mjtWarning.mjWARN_BADCTRL):
                return f"after {before:.3g} s, control {index}"
            if kind == int(mujoco.mjtWarning.mjWARN_BADQPOS):
                joint = int(np.searchsorted(model.jnt_qposadr, index, side="right")) - 1
            else:
                joint = int(model.dof_jntid[index])
            return f"after {before:.3g} s, joint {joint_name(model, joint)}"
    for values in (data.qpos, data.qvel, data.act):
        if not np.isfinite(values).all():
            return f"after {before:.3g} s"
    return None


def _diverged(
    when: str, found: Stretch, model: mujoco.MjModel, data: mujoco.MjData, start: Floats, controls: Controls
) -> str:
    """The message, with a timestep that helps where one is found."""
    hold_s = HOLD_EXTREME_S if "extreme" in when else HOLD_S
    for divisor in SHORTER:
        with _timestep(model, model.opt.timestep / divisor):
            again = _stretch(model, data, start, controls, hold_s, 2 * divisor * max(found.cpu_s, 0.01))
            if again.bad is None:
                cure = f"with timestep = {model.opt.timestep:g} it does not, so shorten it"
                break
    else:
        shortest = model.opt.timestep / SHORTER[-1]
        cure = f"even with timestep = {shortest:g}; weaken the actuators, add damping or armature, check the inertias"
    return f"physics diverges {when} ({found.bad}); {cure}"


@contextlib.contextmanager
def _timestep(model: mujoco.MjModel, step_s: float) -> Iterator[None]:
    usual = model.opt.timestep
    model.opt.timestep = step_s
    try:
        yield
    finally:
        model.opt.timestep = usual


@contextlib.contextmanager
def _passive(model: mujoco.MjModel) -> Iterator[None]:
    """Without actuation, and with the energy counted."""
    enabled, disabled = model.opt.enableflags, model.opt.disableflags
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    try:
        yield
    finally:
        model.opt.enableflags, model.opt.disableflags = enabled, disabled


def _energy_scale(model: mujoco.MjModel) -> float:
    """Joules: to lift all that moves by the size of the model. Passive motion never gains as much."""
    gravity = max(1.0, float(np.linalg.norm(model.opt.gravity)))
    moving = float(model.body_mass[model.body_treeid >= 0].sum())
    return moving * gravity * max(0.1, float(model.stat.extent))


def tell_warnings(data: mujoco.MjData, findings: Findings) -> bool:
    """Other warnings of MuJoCo's; whether there were any."""
    counts = data.warning.number
    if any(counts[kind] for kind in _FULL):
        findings.warnings.append(
            'contacts or constraints do not fit into memory, so some are left out; raise <size memory="…">'
        )
    if counts[int(mujoco.mjtWarning.mjWARN_INERTIA)]:
        findings.warnings.append("the inertia matrix is close to singular; add armature to the lightest joints")
    return any(counts[kind] for kind in (*_FULL, int(mujoco.mjtWarning.mjWARN_INERTIA)))
