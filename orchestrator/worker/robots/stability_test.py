"""Stability test of a robot's physics: a few simulated seconds under random and extreme actions.

Limited by simulated time and by the CPU time that the steps are estimated to take, whichever ends
first. The estimate is of sizes of the model and numbers of constraints alone, so that fast, slow and
busy machines simulate as many steps, and a robot has the same verdict there. A clock has a say only
where steps take :data:`MOST_TIMES` times their estimate, and over the whole examination, which has a
time limit: such a robot may have another verdict on a slower machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

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
TIMESTEP_DIVISORS = (2, 5, 20)
"""Shorter timesteps that are tried where physics diverged."""
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
_BAD = tuple(map(int, divergence.quantities()))
_FULL = (int(mujoco.mjtWarning.mjWARN_CONTACTFULL), int(mujoco.mjtWarning.mjWARN_CNSTRFULL))
_SINGULAR = int(mujoco.mjtWarning.mjWARN_INERTIA)
Controls = Callable[[np.random.Generator], Floats]
"""Draws the next controls, ``(nu,)``."""


def check_stability(
    model: mujoco.MjModel,
    start: Floats,
    actions: ActionMap | None,
    cpu_s: float,
    findings: ModelFindings,
    *,
    cause: str | None = None,
) -> float | None:
    """Add to ``findings``; return physics steps per second under random actions, None where physics
    diverges.

    :param start: ``(nq,)`` pose from which every trial starts, at rest.
    :param actions: maps a policy's actions to controls; None without actuators.
    :param cpu_s: of all trials together, as estimated.
    :param cause: what is wrong with the controls, given as the cause where physics diverges.
    """
    test = _Test(model=model, data=mujoco.MjData(model), start=start)
    if actions is None:
        passive = test.simulate(lambda _: np.zeros(model.nu), HOLD_S, cpu_s)
        return passive.steps_per_s
    low = np.nan_to_num(actions.low, posinf=1.0, neginf=-1.0)
    high = np.nan_to_num(actions.high, posinf=1.0, neginf=-1.0)

    def controls(action: Floats) -> Floats:
        return np.asarray(actions.ctrl(actions.taken(action[None]))[0], np.float64)

    def random(rng: np.random.Generator) -> Floats:
        return controls(rng.uniform(low, high))

    def extreme(rng: np.random.Generator) -> Floats:
        return controls(np.where(rng.integers(0, 2, model.nu), high, low))

    moved = test.simulate(random, HOLD_S, 0.6 * cpu_s)
    if moved.divergence is not None:
        findings.diverges = True
        remedy = cause or test.remedy(random, HOLD_S, moved)
        findings.problems.append(
            f"physics diverges under random actions ({moved.divergence}); {remedy}"
        )
        return None
    findings.warnings += solver_warnings(test.data)
    driven = test.simulate(extreme, HOLD_EXTREME_S, 0.4 * cpu_s)
    if driven.divergence is not None:
        findings.diverges = True
        remedy = cause or test.remedy(extreme, HOLD_EXTREME_S, driven)
        findings.warnings.append(
            f"physics diverges under extreme actions ({driven.divergence}); {remedy}"
        )
    return moved.steps_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    steps_per_s: float
    """Physics steps per CPU second in MuJoCo alone."""
    cost_s: float
    """CPU seconds that its steps are estimated to take."""
    divergence: str | None
    """Time and place at which physics diverged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """The trials of one robot, which all start at rest in the pose ``start``."""

    model: mujoco.MjModel
    data: mujoco.MjData
    start: Floats

    def simulate(
        self, controls: Controls, hold_s: float, most_s: float, most_steps: int = MAX_STEPS
    ) -> _Trial:
        """Simulate from the start until the time is over or physics diverges.

        :param hold_s: simulated seconds for which controls are held.
        :param most_s: estimated CPU seconds.
        """
        model = self.model
        data = self.data
        step_s = float(model.opt.timestep)
        held = max(1, min(round(hold_s / step_s), MAX_STEPS // 10))
        actions = max(1, min(round(SIMULATED_S / step_s), most_steps) // held)
        rng = np.random.default_rng(0)
        mujoco.mj_resetData(model, data)
        data.qpos[:] = self.start
        diverged = None
        steps = 0
        stepping_s = 0.0
        cost_s = 0.0
        begun = time.thread_time()
        for _ in range(actions):
            data.ctrl[:] = controls(rng)
            before = data.time
            started = time.thread_time()
            mujoco.mj_step(model, data, nstep=held)
            stepping_s += time.thread_time() - started
            steps += held
            cost_s += held * step_cost_s(model, data)
            diverged = _divergence(model, data, before)
            if diverged or cost_s > most_s or time.thread_time() - begun > MOST_TIMES * most_s:
                break
        return _Trial(steps_per_s=steps / max(stepping_s, 1e-9), cost_s=cost_s, divergence=diverged)

    def remedy(self, controls: Controls, hold_s: float, diverged: _Trial) -> str:
        """Return a shorter timestep with which ``diverged`` would not, or what else may help."""
        options = self.model.opt
        usual = options.timestep
        most_s = 2 * max(diverged.cost_s, 0.01)
        try:
            for divisor in TIMESTEP_DIVISORS:
                options.timestep = usual / divisor
                trial = self.simulate(controls, hold_s, divisor * most_s, divisor * MAX_STEPS)
                if trial.divergence is None:
                    return f"with timestep = {options.timestep:g} it does not: shorten the timestep"
            remedy = "weaken the actuators, add damping or armature, check the inertias"
            return f"even with timestep = {options.timestep:g}: {remedy}"
        finally:
            options.timestep = usual


def step_cost_s(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Estimate the CPU seconds that the last physics step has taken."""
    of_evaluation = STEP_S + DOF_S * model.nv + GEOM_S * model.ngeom + CONSTRAINT_S * data.nefc
    is_runge_kutta = int(model.opt.integrator) == int(mujoco.mjtIntegrator.mjINT_RK4)
    return float(of_evaluation) * (RUNGE_KUTTA if is_runge_kutta else 1)


def _divergence(model: mujoco.MjModel, data: mujoco.MjData, before: float) -> str | None:
    """Say when and where physics has diverged. MuJoCo then resets the state, so its warnings are
    read too.
    """
    for kind in _BAD:
        if data.warning.number[kind]:
            index = int(data.warning.lastinfo[kind])
            return f"after {before:.3g} s, {divergence.describe(model, mujoco.mjtWarning(kind), index)}"
    if all(np.isfinite(values).all() for values in (data.qpos, data.qvel, data.act)):
        return None
    return f"after {before:.3g} s"


def solver_warnings(data: mujoco.MjData) -> list[str]:
    """Return MuJoCo's warnings about memory and inertia."""
    counts = data.warning.number
    warnings = []
    if any(counts[kind] for kind in _FULL):
        warnings.append(
            'contacts or constraints do not fit into memory, so some are ignored; raise <size memory="…">'
        )
    if counts[_SINGULAR]:
        warnings.append(
            "the inertia matrix is close to singular; add armature to the lightest joints"
        )
    return warnings
