"""What the robots' actuators do in an episode, over all physics steps: work and torques, and what
follows from them with mass and distance.

- ``energy_j``: the absolute mechanical work of all actuators, Σ over physics steps and actuators of
  ``|force · velocity| · dt``. It is in joules whatever an actuator moves (joint, tendon, site …),
  since MuJoCo's ``actuator_velocity`` belongs to ``actuator_force``. What brakes counts as what
  drives, and nothing is recovered, as in the electricity cost of Roboschool's locomotion tasks.
  Positive work alone, which Collins et al. 2005 ("Efficient bipedal robots based on passive-dynamic
  walkers") count, is about a half to the whole of it on level ground. No heat of motors.
- ``mass_kg``: of all bodies that move with the robot, as the episode has drawn them.
- ``cost_of_transport``: ``energy_j / (mass_kg · g · distance)``, without unit (Gabrielli and von
  Kármán 1950, "What price speed?"), with g = 9.81 m/s² whatever the gravity of the model, so that
  swimmers have one, too. The distance is :meth:`.Task.distance_travelled`. NaN where the task does
  not move the robot from place to place, and where the distance is not above 0.
- ``torque_rms``: the root of the mean over physics steps and actuators of the squared torque of an
  actuator, behind its gear and the joint's ``actuatorfrcrange``: N·m at hinges, N at slides and
  tendons.

Force and velocity are those that MuJoCo has computed for a physics step: of the state at its
beginning (with the integrator RK4: of the last of its four stages).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from orchestrator.worker.envs.batch_interface import EffortState
from orchestrator.worker.mjmodel.actuators import scalar_joints
from orchestrator.worker.mjmodel.robot import bodies_of_robot
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks.motion import GRAVITY_M_S2

_RECORDED = ("actuator_force", "actuator_velocity")
_ON_TENDON = (int(mujoco.mjtTrn.mjTRN_TENDON), int(mujoco.mjtTrn.mjTRN_SLIDERCRANK))
_STAGE_NONE: int = mujoco.mjtStage.mjSTAGE_NONE.value
_STAGE_VEL: int = mujoco.mjtStage.mjSTAGE_VEL.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _LimitedJoints:
    """Joints whose ``actuatorfrcrange`` bounds what all of their actuators give together."""

    joints: NDArray[np.intp]
    """``(k,)``"""
    outputs: NDArray[np.intp]
    """``(k, most)`` outputs of the actuators of each joint; rows are filled with ``nout``, one more
    than the greatest output."""

    @classmethod
    def of(cls, model: mujoco.MjModel) -> _LimitedJoints:
        joint_of = _scalar_joints_of_outputs(model)
        outputs_of: dict[int, list[int]] = {}
        for output in np.flatnonzero(joint_of >= 0).tolist():
            joint = int(joint_of[output])
            if model.jnt_actfrclimited[joint]:
                outputs_of.setdefault(joint, []).append(output)
        most = max(map(len, outputs_of.values()), default=0)
        rows = np.full((len(outputs_of), most), model.nout, np.intp)
        for row, outputs in zip(rows, outputs_of.values(), strict=True):
            row[: len(outputs)] = outputs
        return cls(joints=np.array(list(outputs_of), np.intp), outputs=rows)


class EffortMeter:
    """Steps the physics of a batch, with the bits of ``batch.step``, and adds up what actuators do.

    :param pose: ``(nq,)`` the starting pose, which tells what actuators move.
    :param frame_skip: physics steps of a control step.
    :param stage: what is computed anew after a control step, as of ``batch.step``.
    """

    def __init__(
        self, model: mujoco.MjModel, batch: Batch, pose: Floats, frame_skip: int, stage: int
    ) -> None:
        self._model = model
        self._batch = batch
        self._frame_skip = frame_skip
        self._stage = stage
        n_envs = batch.nsim
        shape = (n_envs, frame_skip, model.nout)
        self._force = np.zeros(shape)
        """Of the latest control step, as :attr:`_velocity`."""
        self._velocity = np.zeros(shape)
        self._force_now = batch.bind("actuator_force")
        """``(n_envs, nout)`` a view of the batch, as :attr:`_velocity_now`."""
        self._velocity_now = batch.bind("actuator_velocity")
        # With the stage VEL, MuJoCo computes velocities anew after the last physics step, but not
        # forces: the force of this step is known after it, and its velocity only before.
        self._recorded_steps = frame_skip - 1 if stage == _STAGE_VEL else frame_skip
        self._records = {
            name: np.zeros((n_envs, self._recorded_steps, model.nout)) for name in _RECORDED
        }
        self._state_before = batch.state.copy()
        self._warnings_before = batch.warning.copy()
        self._robot = np.flatnonzero(bodies_of_robot(model, pose))
        self._limited = _LimitedJoints.of(model)
        self._uses_one_gear = _uses_one_gear(model)
        self._levers_of_all = torque_levers(model)[None, None]
        # Sums over the running episodes.
        self._energy_j = np.zeros(n_envs)
        self._squared_torques = np.zeros(n_envs)
        self._distance_m = np.zeros(n_envs)

    # -- physics

    def step(self) -> None:
        """One control step of the physics."""
        recorded = self._recorded_steps
        if recorded:
            self._record()
            self._force[:, :recorded] = self._records["actuator_force"]
            self._velocity[:, :recorded] = self._records["actuator_velocity"]
        if self._stage == _STAGE_VEL:
            self._batch.forward(stage=_STAGE_VEL)
            self._velocity[:, -1] = self._velocity_now
            self._batch.step(nstep=1, stage=_STAGE_VEL)
            self._force[:, -1] = self._force_now
        elif self._stage != _STAGE_NONE:
            self._batch.forward(stage=self._stage)

    def _record(self) -> None:
        """Physics steps in one call; one by one where MuJoCo warns of anything, as its recording
        then stops early, and a step does not.
        """
        batch = self._batch
        np.copyto(self._state_before, batch.state)
        np.copyto(self._warnings_before, batch.warning)
        batch.rollout(self._recorded_steps, record=_RECORDED, out=self._records)
        if np.array_equal(batch.warning, self._warnings_before):
            return
        batch.state[:] = self._state_before
        batch.warning[:] = self._warnings_before
        for number in range(self._recorded_steps):
            batch.step(nstep=1, stage=_STAGE_NONE)
            self._records["actuator_force"][:, number] = self._force_now
            self._records["actuator_velocity"][:, number] = self._velocity_now

    # -- sums

    def begin(self, envs: NDArray[np.intp]) -> None:
        """New episodes begin in ``envs``."""
        self._energy_j[envs] = 0.0
        self._squared_torques[envs] = 0.0
        self._distance_m[envs] = 0.0

    def add(self, distance_m: Floats | None, diverged: list[int]) -> None:
        """Add the control step that was stepped last.

        :param distance_m: ``(n_envs,)`` by which the robots have moved; None: nobody moves them.
        :param diverged: environments whose step does not count: their forces mean nothing.
        """
        rows = len(self._force)
        self._force[diverged] = 0.0
        self._velocity[diverged] = 0.0
        force = self._delivered_forces()
        power = np.abs(force * self._velocity).reshape(rows, -1)
        squares = np.square(force * self._levers()).reshape(rows, -1)
        # One sum a row: its bits depend on no other row.
        self._energy_j += np.add.reduce(power, axis=1) * self._model.opt.timestep
        self._squared_torques += np.add.reduce(squares, axis=1)
        if distance_m is not None:
            self._distance_m += distance_m

    def measures(self, env: int, control_steps: int) -> dict[str, float]:
        """By name, of the episode in ``env`` that ends.

        :param control_steps: its length.
        """
        energy_j = float(self._energy_j[env])
        mass_kg = self._mass_kg(env)
        weight_times_way = mass_kg * GRAVITY_M_S2 * float(self._distance_m[env])
        n_torques = control_steps * self._frame_skip * self._model.nout
        mean_square = float(self._squared_torques[env]) / n_torques if n_torques else 0.0
        cost = math.nan  # this object: two dicts with NaN are equal only if it is the same one
        if weight_times_way > 0:
            cost = energy_j / weight_times_way
        return {
            "energy_j": energy_j,
            "mass_kg": mass_kg,
            "cost_of_transport": cost,
            "torque_rms": math.sqrt(mean_square),
        }

    def get_state(self) -> EffortState:
        return {
            "energy_j": self._energy_j.copy(),
            "squared_torques": self._squared_torques.copy(),
            "distance_m": self._distance_m.copy(),
        }

    def set_state(self, state: EffortState) -> None:
        self._energy_j[:] = state["energy_j"]
        self._squared_torques[:] = state["squared_torques"]
        self._distance_m[:] = state["distance_m"]

    # -- properties of the robots, which episodes may have drawn

    def _delivered_forces(self) -> Floats:
        """``(n_envs, frame_skip, nout)`` forces, less where the range of a joint bounds them: all
        actuators of the joint by the same share.
        """
        limited = self._limited
        force = self._force
        if not len(limited.joints):
            return force
        on_joints = np.zeros((*force.shape[:2], force.shape[2] + 1))
        on_joints[..., :-1] = force * self._per_env("actuator_gear")[..., 0]
        ranges = self._per_env("jnt_actfrcrange")[:, :, limited.joints]
        asked = np.zeros((*force.shape[:2], len(limited.joints)))
        for outputs in limited.outputs.T:
            asked += on_joints[..., outputs]
        given = np.minimum(np.maximum(asked, ranges[..., 0]), ranges[..., 1])
        shares = np.divide(given, asked, out=np.ones_like(asked), where=asked != 0)
        share_of = np.ones_like(on_joints)
        for outputs in limited.outputs.T:
            share_of[..., outputs] = shares
        return force * share_of[..., :-1]

    def _levers(self) -> Floats:
        """``(n_envs or 1, 1, nout)`` torque for each unit of actuator force."""
        drawn = self._batch.expanded("actuator_gear")
        return (
            self._levers_of_all if drawn is None else _levers(drawn[:, None], self._uses_one_gear)
        )

    def _mass_kg(self, env: int) -> float:
        masses = self._per_env("body_mass")
        of_env = masses[env if len(masses) > 1 else 0, 0]
        return float(np.add.reduce(of_env[self._robot]))

    def _per_env(self, name: str) -> NDArray[Any]:
        """``(n_envs, 1, …)`` values of a field of the model; ``(1, 1, …)`` where all have the
        same.
        """
        drawn: NDArray[Any] | None = self._batch.expanded(name)
        if drawn is not None:
            return drawn[:, None]
        shared: NDArray[Any] = getattr(self._model, name)
        return shared[None, None]


def torque_levers(model: mujoco.MjModel) -> Floats:
    """``(nout,)`` torque for each unit of actuator force, of each output."""
    return _levers(np.array(model.actuator_gear), _uses_one_gear(model))


def _levers(gear: Floats, uses_one_gear: NDArray[np.bool_]) -> Floats:
    """The length of each gear ``(…, nout, 6)``.

    :param uses_one_gear: ``(nout,)`` whether only the first number of a gear has a meaning.
    """
    length = np.sqrt(np.add.reduce(np.square(gear), axis=-1))
    levers: Floats = np.where(uses_one_gear, np.abs(gear[..., 0]), length)
    return levers


def _scalar_joints_of_outputs(model: mujoco.MjModel) -> NDArray[np.intp]:
    """``(nout,)`` the slide or hinge that each output acts on; -1 for any other transmission."""
    return np.repeat(scalar_joints(model), model.actuator_outnum)


def _uses_one_gear(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """``(nout,)`` whether only the first number of an output's gear has a meaning."""
    kind = np.repeat(model.actuator_trntype, model.actuator_outnum)
    uses: NDArray[np.bool_] = np.isin(kind, _ON_TENDON) | (_scalar_joints_of_outputs(model) >= 0)
    return uses
