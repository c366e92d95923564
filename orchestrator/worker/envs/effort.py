"""What the robots' actuators do in an episode, over all physics steps: work and torques, and what
follows from them with mass and distance.

- ``energy_j``: the absolute mechanical work at the joints, Σ over physics steps and degrees of
  freedom of ``|torque · velocity| · dt``. What brakes counts as what drives, and nothing is
  recovered, as in the electricity cost of Roboschool's locomotion tasks. Positive work alone, which
  Collins et al. 2005 ("Efficient bipedal robots based on passive-dynamic walkers") count, is about a
  half to the whole of it on level ground. No heat of motors.
- ``mass_kg``: of all bodies that move with the robot, as the episode has drawn them.
- ``cost_of_transport``: ``energy_j / (mass_kg · g · distance)``, without unit (Gabrielli and von
  Kármán 1950, "What price speed?"), with g = 9.81 m/s² whatever the gravity of the model, so that
  swimmers have one, too. The distance is :meth:`.Task.distance_travelled`. NaN where the task does
  not move the robot from place to place, and where the distance is not above 0.
- ``torque_rms``: the root of the mean, over physics steps and driven degrees of freedom, of the
  squared torque: N·m at hinges, N at slides.

The torque is MuJoCo's ``qfrc_actuator``: of all actuators together, behind gears and the joint's
``actuatorfrcrange``. Torque and velocity are those at the beginning of a physics step (with the
integrator RK4, the torque is that of the last of its four stages).
"""

from __future__ import annotations

import math

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from orchestrator.worker.mjmodel.robot import bodies_of_robot
from orchestrator.worker.mjmodel.structure import Floats, driven_dofs, posed_data
from orchestrator.worker.tasks.motion import GRAVITY_M_S2

_TORQUE = "qfrc_actuator"
_VELOCITY = "qvel"
_STAGE_NONE: int = mujoco.mjtStage.mjSTAGE_NONE.value
_STAGE_VEL: int = mujoco.mjtStage.mjSTAGE_VEL.value


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
        self._torques = np.zeros((n_envs, frame_skip, model.nv))
        """Of the physics steps of the latest control step."""
        self._velocities = self._torques.copy()
        """Before each of them."""
        self._torques_now = batch.bind(_TORQUE)
        """``(n_envs, nv)`` a view of the batch, as :attr:`_velocities_now`."""
        self._velocities_now = batch.bind(_VELOCITY)
        self._robot = np.flatnonzero(bodies_of_robot(model, pose))
        self._n_driven = np.count_nonzero(driven_dofs(model, posed_data(model, pose)))
        self.sums = {
            "energy_j": np.zeros(n_envs),
            "squared_torques": np.zeros(n_envs),
            "distance_m": np.zeros(n_envs),
        }
        """``(n_envs,)`` each, over the running episodes."""

    def step(self) -> None:
        """One control step of the physics."""
        for number in range(self._frame_skip):
            self._velocities[:, number] = self._velocities_now
            # What depends on accelerations stays that of the last physics step: it has to be the
            # one that computes the stage, because environments share memory.
            is_last = number == self._frame_skip - 1 and self._stage == _STAGE_VEL
            self._batch.step(nstep=1, stage=_STAGE_VEL if is_last else _STAGE_NONE)
            self._torques[:, number] = self._torques_now
        if self._stage not in (_STAGE_NONE, _STAGE_VEL):
            self._batch.forward(stage=self._stage)

    def begin(self, envs: NDArray[np.intp]) -> None:
        """New episodes begin in ``envs``."""
        for values in self.sums.values():
            values[envs] = 0.0

    def add(self, distance_m: Floats | None, diverged: list[int]) -> None:
        """Add the control step that was stepped last.

        :param distance_m: ``(n_envs,)`` by which the robots have moved; None: nobody moves them.
        :param diverged: environments whose step does not count: their torques mean nothing.
        """
        torques = self._torques
        torques[diverged] = 0.0
        self._velocities[diverged] = 0.0
        rows = len(torques)
        power = np.abs(torques * self._velocities).reshape(rows, -1)
        squares = np.square(torques).reshape(rows, -1)
        # One sum a row: its bits depend on no other row.
        self.sums["energy_j"] += np.add.reduce(power, axis=1) * self._model.opt.timestep
        self.sums["squared_torques"] += np.add.reduce(squares, axis=1)
        if distance_m is not None:
            self.sums["distance_m"] += distance_m

    def measures(self, env: int, control_steps: int) -> dict[str, float]:
        """By name, of the episode in ``env`` that ends.

        :param control_steps: its length.
        """
        sums = {name: float(values[env]) for name, values in self.sums.items()}
        drawn = self._batch.expanded("body_mass")
        masses = self._model.body_mass if drawn is None else drawn[env]
        mass_kg = float(np.add.reduce(masses[self._robot]))
        weight_times_way = mass_kg * GRAVITY_M_S2 * sums["distance_m"]
        n_torques = control_steps * self._frame_skip * self._n_driven
        cost = math.nan  # this object: two dicts with NaN are equal only if it is the same one
        if weight_times_way > 0:
            cost = sums["energy_j"] / weight_times_way
        return {
            "energy_j": sums["energy_j"],
            "mass_kg": mass_kg,
            "cost_of_transport": cost,
            "torque_rms": math.sqrt(sums["squared_torques"] / n_torques) if n_torques else 0.0,
        }
