"""Stability test of a robot's physics: a few simulated seconds under random and extreme actions.

Limited by simulated time and by the CPU time that the steps are estimated to take, whichever ends
first. The estimate is of sizes of the model and numbers of constraints alone, so that fast, slow and
busy machines simulate as many steps, and a robot has the same verdict there. A clock has a say only
where steps take :data:`MOST_TIMES` times their estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import mujoco
import numpy as np

from orchestrator.worker.envs import divergence
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.tasks.actions import ActionMap

SIMULATED_S = 3.0
"""Simulated seconds of one trial."""
HOLD_S = 0.02
"""How long one random action is held; less where the timestep is tiny."""
HOLD_EXTREME_S = 0.1
"""How long one extreme action is held."""
REMEDY = "shorten the timestep, weaken the actuators, add damping or armature, check the inertias"
MAX_STEPS = 5_000
"""Physics steps of one trial, which limit it where the timestep is tiny."""
STEP_S = 1e-5
"""Estimated CPU seconds of a physics step of any robot; the next are for each of these in it. A
modern core takes half as long, or twice."""
DOF_S = 1e-6
GEOM_S = 5e-7
CONSTRAINT_S = 2e-6
RUNGE_KUTTA = 4
"""So many evaluations does the integrator RK4 take for a step."""
MOST_TIMES = 10
"""A trial ends where it takes so many times the CPU seconds that were estimated: what is costly in
another way, such as collisions of detailed meshes."""
WARNINGS = {
    mujoco.mjtWarning.mjWARN_CONTACTFULL: (
        'contacts do not fit into memory, so some are ignored; raise <size memory="…">'
    ),
    mujoco.mjtWarning.mjWARN_CNSTRFULL: (
        'constraints do not fit into memory, so some are ignored; raise <size memory="…">'
    ),
    mujoco.mjtWarning.mjWARN_INERTIA: (
        "the inertia matrix is close to singular; add armature to the lightest joints"
    ),
}
Controls = Callable[[np.random.Generator], Floats]
"""Draws the next controls, ``(nu,)``."""


def check_stability(
    model: mujoco.MjModel,
    start: Floats,
    actions: ActionMap,
    cpu_s: float,
    findings: ModelFindings,
) -> float | None:
    """Add to ``findings``; return physics steps per second under random actions, None where physics
    diverges.

    :param start: ``(nq,)`` pose from which every trial starts, at rest.
    :param actions: maps a policy's actions to controls.
    :param cpu_s: of all trials together, as estimated.
    """
    data = mujoco.MjData(model)
    low = np.nan_to_num(actions.low, posinf=1.0, neginf=-1.0)
    high = np.nan_to_num(actions.high, posinf=1.0, neginf=-1.0)

    def controls(action: Floats) -> Floats:
        return np.asarray(actions.ctrl(actions.taken(action[None]))[0], np.float64)

    def random(rng: np.random.Generator) -> Floats:
        return controls(rng.uniform(low, high))

    def extreme(rng: np.random.Generator) -> Floats:
        return controls(np.where(rng.integers(0, 2, model.nu), high, low))

    steps_per_s, diverged = _simulate(model, data, start, random, HOLD_S, 0.6 * cpu_s)
    if diverged is not None:
        findings.diverges = True
        findings.problems.append(f"physics diverges under random actions ({diverged}); {REMEDY}")
        return None
    findings.warnings += solver_warnings(data)
    _, diverged = _simulate(model, data, start, extreme, HOLD_EXTREME_S, 0.4 * cpu_s)
    if diverged is not None:
        findings.diverges = True
        findings.warnings.append(f"physics diverges under extreme actions ({diverged}); {REMEDY}")
    return steps_per_s


def _simulate(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    start: Floats,
    controls: Controls,
    hold_s: float,
    most_s: float,
) -> tuple[float, str | None]:
    """Simulate from the start until the time is over or physics diverges. Return physics steps per
    CPU second in MuJoCo alone, and when and where physics diverged.

    :param hold_s: simulated seconds for which controls are held.
    :param most_s: estimated CPU seconds.
    """
    step_s = float(model.opt.timestep)
    held = max(1, min(round(hold_s / step_s), MAX_STEPS // 10))
    most_actions = max(1, min(round(SIMULATED_S / step_s), MAX_STEPS) // held)
    rng = np.random.default_rng(0)
    mujoco.mj_resetData(model, data)
    data.qpos[:] = start
    diverged = None
    actions = 0
    stepping_s = 0.0
    cost_s = 0.0
    begun = time.thread_time()
    while actions < most_actions and diverged is None and cost_s <= most_s:
        data.ctrl[:] = controls(rng)
        before = data.time
        started = time.thread_time()
        mujoco.mj_step(model, data, nstep=held)
        now = time.thread_time()
        stepping_s += now - started
        actions += 1
        cost_s += held * step_cost_s(model, data)
        diverged = _divergence(model, data, before)
        if now - begun > MOST_TIMES * most_s:
            break
    return actions * held / max(stepping_s, 1e-9), diverged


def step_cost_s(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Estimate the CPU seconds that the last physics step has taken."""
    sizes = DOF_S * model.nv + GEOM_S * model.ngeom + CONSTRAINT_S * data.nefc
    is_runge_kutta = model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4
    return float(STEP_S + sizes) * (RUNGE_KUTTA if is_runge_kutta else 1)


def _divergence(model: mujoco.MjModel, data: mujoco.MjData, before: float) -> str | None:
    """Say when and where physics has diverged. MuJoCo then resets the state, so its warnings are
    read too.
    """
    for kind in divergence.quantities():
        if data.warning.number[int(kind)]:
            index = int(data.warning.lastinfo[int(kind)])
            return f"after {before:.3g} s, {divergence.describe(model, kind, index)}"
    if all(np.isfinite(values).all() for values in (data.qpos, data.qvel, data.act)):
        return None
    return f"after {before:.3g} s"


def solver_warnings(data: mujoco.MjData) -> list[str]:
    """Return MuJoCo's warnings about memory and inertia."""
    return [text for kind, text in WARNINGS.items() if data.warning.number[int(kind)]]
