"""A batch of environments whose robots differ: each episode draws its own properties from the
environment's stream.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.core.numbers.distributions import PRIVILEGED
from orchestrator.core.numbers.terrain import terrain_of
from orchestrator.worker.envs.batch_interface import BatchSettings, SimulationState, StepResult
from orchestrator.worker.envs.episode_conditions import GridPlaces, TerrainPlace
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.randomization.disturbances import Disturbances
from orchestrator.worker.envs.randomization.draws import EpisodeDraws
from orchestrator.worker.envs.randomization.episode_starts import EpisodeStarts
from orchestrator.worker.envs.randomization.randomized_fields import (
    prepare_model,
    randomized_keys,
    write,
)
from orchestrator.worker.envs.randomization.rough_terrain import RoughTerrain
from orchestrator.worker.envs.simulation import Simulation, generator
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.tasks import make_task


class RandomizedSimulation(Simulation):
    """A :class:`Simulation` that draws the values of ``randomize`` whenever an episode begins.

    With ``nominal``, nothing is drawn.

    :param randomize: dotted keys of the robot → distributions, as in the job file.
    :param asymmetric: whether the last observations are what the episode has drawn, for the critic
        alone; zeros for what is not drawn here, as with ``nominal``.
    :param grid: of an evaluation: its keys have the values of its points, whatever ``randomize``
        says.
    :raises ValueError: a key does not fit the robot.
    """

    def __init__(
        self,
        xml: Path | str,
        task: str,
        task_options: Mapping[str, Any] | None,
        randomize: Mapping[str, str],
        grid: GridPlaces | None = None,
        *,
        asymmetric: bool = False,
        **settings: Unpack[BatchSettings],
    ) -> None:
        model = load_model(xml)
        drawn = {} if settings.get("nominal", False) else randomize
        self._grid = grid
        made = make_task(task, model, task_options)
        self.terrain = terrain_of(drawn)
        self._terrain: RoughTerrain | None = None
        on_floor = model
        if self.terrain is not None:
            self._terrain = RoughTerrain(Path(xml), model, made, self.terrain)
            on_floor = self._terrain.model
        self.keys = randomized_keys(model, drawn, None if grid is None else grid.grid)
        prepare_model(on_floor, self.keys)
        super().__init__(on_floor, made, robot=Path(xml).name, asymmetric=asymmetric, **settings)
        self.draws = EpisodeDraws(self, drawn, grid)
        for key in self.keys:
            self.draws.sources[key.key] = key.distribution
            self.draws.values[key.key] = np.zeros(self.n_envs)
            for change in key.changes:
                self._batch.expand(change.field)
        seen = np.zeros((self.n_envs, self._sensed_size), self.observation_dtype)
        self._disturbances = Disturbances(self.draws, self.task, seen)
        self._starts = EpisodeStarts(self.draws, self.task, self._terrain, self.n_envs)
        self._shown: list[str] = []
        """Keys that the critic sees: those of the robot, then delays and the period of pushes."""
        if asymmetric:
            self._shown += [key.key for key in randomized_keys(model, randomize)]
            self._shown += [key for key in PRIVILEGED if key in randomize]
        self.privileged_names = (*self.privileged_names, *self._shown)
        self.observation_size += len(self._shown)
        # Contact forces are computed outside of the batch, at every step.
        self._models = [
            copy.copy(on_floor) if self._contact_forces else None for _ in range(self.n_envs)
        ]

    def seed(self, seed: int | Sequence[int]) -> None:
        """As :meth:`Simulation.seed`."""
        super().seed(seed)
        self._disturbances.forget_noise()

    def _generators(self, seed: int | Sequence[int]) -> list[np.random.Generator]:
        if self._grid is None:
            return super()._generators(seed)
        return [generator(seed, env % self._grid.at_each) for env in range(self.n_envs)]

    def model_of(self, env: int) -> mujoco.MjModel:
        """The robot of environment ``env`` in its running episode."""
        return self._models[env] or self._batch.get_model(env)

    def ground(self, env: int) -> TerrainPlace | None:
        """As :meth:`Simulation.ground`."""
        if self._terrain is None:
            return None
        x_m, y_m = self._terrain.position_in_body(self._starts.place(env)).tolist()
        return TerrainPlace(geom=self._terrain.floor, x_m=x_m, y_m=y_m)

    def step(self, actions: ArrayLike) -> StepResult:
        """As :meth:`Simulation.step`; a push comes before the physics."""
        due = self._disturbances.due_pushes(self._lengths())
        if due is not None:
            self._push(due, lambda env: self._disturbances.push(env, self.generators[env]))
        return super().step(actions)

    def _arriving(self, action: NDArray[Any]) -> NDArray[Any]:
        return self._disturbances.disturbed_actions(action)

    def _sensed(self) -> NDArray[Any]:
        return self._disturbances.disturbed_observations(super()._sensed())

    def _first_sensed(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        return self._disturbances.disturbed_first_observations(super()._first_sensed(envs), envs)

    def _sensed_last(self) -> NDArray[Any]:
        return self._disturbances.seen.copy()

    def _privileged_values(self, envs: NDArray[np.intp]) -> list[NDArray[Any]]:
        values = np.zeros((len(envs), len(self._shown)))
        for place, key in enumerate(self._shown):
            if key in self.draws.values:
                values[:, place] = self.draws.values[key][envs]
        return [*super()._privileged_values(envs), values]

    def _start_episodes(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        for env in envs:
            for key in self.keys:
                self.draws.keep(key.key, env)
        self._disturbances.begin_episodes(envs)
        self._write_robots(envs)
        return super()._start_episodes(envs)

    def _write_robots(self, envs: NDArray[np.intp]) -> None:
        for env in envs:
            for key in self.keys:
                write(self._batch, env, key, float(self.draws.values[key.key][env]))
        if self.keys:
            self._batch.set_const(envs)
        for env in envs:
            self._copy_model(env)

    def _copy_model(self, env: int | np.intp) -> None:
        """Bring the robot up to date with which contact forces are computed."""
        if (model := self._models[env]) is not None:
            self._batch.get_model(env, model)

    def _initial_state(self, env: int) -> tuple[Floats, Floats]:
        qpos, qvel = super()._initial_state(env)
        self._starts.change(env, qpos, qvel, self.generators[env])
        self._write_terrain(env)
        return qpos, qvel

    def _write_terrain(self, env: int | np.intp) -> None:
        if self._terrain is not None:
            position = self._terrain.position_in_body(self._starts.place(env))
            self._batch.expand("geom_pos")[env, self._terrain.floor, :2] = position
            self._copy_model(env)

    def _drawn_by(self, env: int) -> dict[str, float]:
        """As :meth:`Simulation._drawn_by`: delays in control steps, the period of pushes in s."""
        drawn = {key: float(values[env]) for key, values in self.draws.values.items()}
        if "push.period" in drawn:
            drawn["push.period"] *= self.control_period_s
        return drawn

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(), **self.draws.values, **self._disturbances.arrays()}

    def set_state(self, state: SimulationState) -> NDArray[Any]:
        """As :meth:`Simulation.set_state`, with the robots and disturbances of the running
        episodes.
        """
        observations = super().set_state(state)
        self._write_robots(self._all_envs)
        for env in self._all_envs:
            self._write_terrain(env)
        return observations
