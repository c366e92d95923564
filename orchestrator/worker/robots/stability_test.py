"""Simulation stability test of a robot: a few simulated seconds at rest and under no, random and
extreme actions.

Limited by simulated time and by the CPU time that the steps are estimated to take, whichever ends
first. The estimate is of sizes of the model and numbers of constraints alone, so that fast, slow and
busy machines simulate as many steps, and a robot has the same verdict there. A clock has a say only
where steps take :data:`MOST_TIMES` times their estimate, and over the whole examination, which has a
time limit: such a robot may have another verdict on a slower machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from orchestrator.worker.envs import divergence
from orchestrator.worker.mjmodel.robot import moving_bodies
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.tasks.actions import ActionMap, control_limits

SIMULATED_S = 3.0
"""Simulated seconds of one trial."""
HOLD_S = 0.02
"""How long one random action is held; less where the timestep is tiny."""
HOLD_EXTREME_S = 0.1
"""How long one extreme action is held."""
SETTLED_S = 0.25
"""Energy that a starting pose beyond joint limits releases within this time does not count as
growth."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityTrial:
    steps_per_s: float
    """Physics steps per CPU second in MuJoCo alone."""
    cost_s: float
    """CPU seconds that its steps are estimated to take."""
    divergence: str | None
    """Time and place at which physics diverged."""
    energy_growth: float
    """Largest gain of energy in joules after settling; 0 where energy is not computed."""


def check_stability(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    start: Floats,
    rest: Floats,
    actions: ActionMap | None,
    cpu_s: float,
    findings: ModelFindings,
    *,
    cause: str | None = None,
) -> float | None:
    """Add to ``findings``; return physics steps per second under random actions, None where physics
    diverges.

    :param cpu_s: of all trials together, as estimated.
    :param start: ``(nq,)`` pose from which every trial starts, at rest.
    :param rest: ``(nu,)`` controls of an action of zeros.
    :param actions: maps a policy's actions to controls; None without actuators.
    :param cause: what is wrong with the controls, and given as the cause where physics diverges
        under them.
    """
    test = _Test(model=model, data=data, start=start, cpu_s=cpu_s, cause=cause)

    def no_action(_: np.random.Generator) -> Floats:
        return rest

    with _passive(model):
        passive = test.simulate("with the actuators disabled", no_action, share=0.2)
    if passive.problem is not None:
        findings.diverges = True
        findings.problems.append(passive.problem)
        return None
    _warn_of_growing_energy(model, passive.trial, findings)
    if actions is None:
        add_solver_warnings(data, findings)
        return passive.trial.steps_per_s
    return _check_with_actuators(test, no_action, actions, findings)


def _warn_of_growing_energy(
    model: mujoco.MjModel, passive: StabilityTrial, findings: ModelFindings
) -> None:
    """Warn where energy has grown in ``passive``, the trial with the actuators disabled."""
    # Energy in joules that lifts all moving bodies by the size of the model; passive motion never
    # gains as much.
    mass = float(model.body_mass[moving_bodies(model)].sum())
    gravity = max(1.0, float(np.linalg.norm(model.opt.gravity)))
    size = max(0.1, float(model.stat.extent))
    scale = mass * gravity * size
    if passive.energy_growth > scale:
        findings.warnings.append(
            f"energy grows without bound: with the actuators disabled by {passive.energy_growth:.3g} J (lifting the "
            f"robot by its own size takes {scale:.3g} J); use a shorter timestep or softer springs"
        )


def _check_with_actuators(
    test: _Test, no_action: Controls, actions: ActionMap, findings: ModelFindings
) -> float | None:
    """Add to ``findings``; return physics steps per second under random actions, None where physics
    diverges.
    """
    model = test.model
    low = np.nan_to_num(actions.low, posinf=1.0, neginf=-1.0)
    high = np.nan_to_num(actions.high, posinf=1.0, neginf=-1.0)
    limits = control_limits(model)

    def random(rng: np.random.Generator) -> Floats:
        action = actions.taken(rng.uniform(low, high)[None])
        return np.asarray(actions.ctrl(action)[0], np.float64)

    def extreme(rng: np.random.Generator) -> Floats:
        return np.where(rng.integers(0, 2, model.nu), limits.high, limits.low)

    at_rest = test.simulate("with no action", no_action, share=0.2)
    if at_rest.problem is not None:
        findings.diverges = True
        findings.problems.append(at_rest.problem)
        return None
    has_warned = add_solver_warnings(test.data, findings)
    moved = test.simulate("under random actions", random, share=0.4)
    if moved.problem is not None:
        findings.diverges = True
        findings.problems.append(moved.problem)
        return None
    has_warned = has_warned or add_solver_warnings(test.data, findings)
    driven = test.simulate("under extreme actions", extreme, share=0.2, hold_s=HOLD_EXTREME_S)
    if driven.problem is not None:
        findings.diverges = True
        findings.warnings.append(driven.problem)
    elif not has_warned:
        add_solver_warnings(test.data, findings)
    return moved.trial.steps_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    trial: StabilityTrial
    problem: str | None
    """That physics diverges, and what helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """The test of one robot; its arguments are those of :func:`check_stability`."""

    model: mujoco.MjModel
    data: mujoco.MjData
    start: Floats
    cpu_s: float
    cause: str | None

    def simulate(
        self, when: str, controls: Controls, *, share: float, hold_s: float = HOLD_S
    ) -> _Verdict:
        """One trial. :param share: of the CPU seconds."""
        trial = self._trial(controls, hold_s, most_s=share * self.cpu_s)
        if trial.divergence is None:
            return _Verdict(trial=trial, problem=None)
        disabled = self.model.opt.disableflags
        is_passive = bool(disabled & int(mujoco.mjtDisableBit.mjDSBL_ACTUATION))
        remedy = None if is_passive else self.cause
        if not remedy:
            remedy = self._remedy(controls, hold_s, most_s=2 * max(trial.cost_s, 0.01))
        problem = f"physics diverges {when} ({trial.divergence}); {remedy}"
        return _Verdict(trial=trial, problem=problem)

    def _trial(
        self, controls: Controls, hold_s: float, most_s: float, most_steps: int = MAX_STEPS
    ) -> StabilityTrial:
        """Simulate from the start until the time is over or physics diverges.

        :param most_s: estimated CPU seconds.
        """
        model = self.model
        data = self.data
        step_s = float(model.opt.timestep)
        held = max(1, min(round(hold_s / step_s), MAX_STEPS // 10))
        count = min(round(SIMULATED_S / step_s), most_steps) // held
        rng = np.random.default_rng(0)
        mujoco.mj_resetData(model, data)
        data.qpos[:] = self.start
        mujoco.mj_forward(model, data)
        at_start = float(data.energy.sum())
        growth = 0.0
        diverged = None
        steps = 0
        stepping_s = 0.0
        cost_s = 0.0
        begun = time.thread_time()
        for _ in range(max(1, count)):
            data.ctrl[:] = controls(rng)
            before = data.time
            started = time.thread_time()
            mujoco.mj_step(model, data, nstep=held)
            stepping_s += time.thread_time() - started
            steps += held
            cost_s += held * _step_cost_s(model, data)
            diverged = _divergence(model, data, before)
            is_over = cost_s > most_s or time.thread_time() - begun > MOST_TIMES * most_s
            if diverged or is_over:
                break
            if data.time < SETTLED_S:
                at_start = max(at_start, float(data.energy.sum()))
            growth = max(growth, float(data.energy.sum()) - at_start)
        return StabilityTrial(
            steps_per_s=steps / max(stepping_s, 1e-9),
            cost_s=cost_s,
            divergence=diverged,
            energy_growth=growth,
        )

    def _remedy(self, controls: Controls, hold_s: float, most_s: float) -> str:
        """A shorter timestep with which physics does not diverge, if there is one.

        :param most_s: estimated CPU seconds of a trial with the usual timestep.
        """
        options = self.model.opt
        usual = options.timestep
        try:
            for divisor in TIMESTEP_DIVISORS:
                options.timestep = usual / divisor
                trial = self._trial(controls, hold_s, divisor * most_s, divisor * MAX_STEPS)
                if trial.divergence is None:
                    return f"with timestep = {options.timestep:g} it does not: shorten the timestep"
            remedy = "weaken the actuators, add damping or armature, check the inertias"
            return f"even with timestep = {options.timestep:g}: {remedy}"
        finally:
            options.timestep = usual


def _step_cost_s(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """CPU seconds that the last physics step is estimated to have taken."""
    of_evaluation = STEP_S + DOF_S * model.nv + GEOM_S * model.ngeom + CONSTRAINT_S * data.nefc
    is_runge_kutta = int(model.opt.integrator) == int(mujoco.mjtIntegrator.mjINT_RK4)
    return float(of_evaluation) * (RUNGE_KUTTA if is_runge_kutta else 1)


def _divergence(model: mujoco.MjModel, data: mujoco.MjData, before: float) -> str | None:
    """When and where physics has diverged. MuJoCo then resets the state, so its warnings are read
    too.
    """
    for kind in _BAD:
        if data.warning.number[kind]:
            index = int(data.warning.lastinfo[kind])
            return f"after {before:.3g} s, {divergence.describe(model, mujoco.mjtWarning(kind), index)}"
    if all(np.isfinite(values).all() for values in (data.qpos, data.qvel, data.act)):
        return None
    return f"after {before:.3g} s"


@contextlib.contextmanager
def _passive(model: mujoco.MjModel) -> Iterator[None]:
    """A simulation with the actuators disabled, in which the energy is computed."""
    enabled = model.opt.enableflags
    disabled = model.opt.disableflags
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
    try:
        yield
    finally:
        model.opt.enableflags = enabled
        model.opt.disableflags = disabled


def add_solver_warnings(data: mujoco.MjData, findings: ModelFindings) -> bool:
    """Add MuJoCo's warnings about memory and inertia; return whether there were any."""
    counts = data.warning.number
    if any(counts[kind] for kind in _FULL):
        text = 'contacts or constraints do not fit into memory, so some are ignored; raise <size memory="…">'
        findings.warnings.append(text)
    if counts[_SINGULAR]:
        findings.warnings.append(
            "the inertia matrix is close to singular; add armature to the lightest joints"
        )
    return any(counts[kind] for kind in (*_FULL, _SINGULAR))
