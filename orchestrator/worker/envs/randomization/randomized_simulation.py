"""A batch of environments whose robots differ: each episode draws its own properties from the
environment's stream.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.core.numbers.distributions import PRIVILEGED, Distribution, by_number
from orchestrator.core.numbers.terrain import terrain_of
from orchestrator.worker.envs.batch_interface import (
    BatchSettings,
    Episode,
    SimulationState,
    StepResult,
)
from orchestrator.worker.envs.episode_conditions import GridPlaces, TerrainPlace
from orchestrator.worker.envs.model_loading import load_model
from orchestrator.worker.envs.randomization.disturbances import Disturbances, DisturbanceState
from orchestrator.worker.envs.randomization.draws import draw
from orchestrator.worker.envs.randomization.episode_starts import EpisodeStarts
from orchestrator.worker.envs.randomization.randomized_fields import (
    GRID_TABLE,
    RandomizedKey,
    randomized_keys,
    write,
)
from orchestrator.worker.envs.randomization.rough_terrain import RoughTerrain
from orchestrator.worker.envs.simulation import Simulation, generator
from orchestrator.worker.mjmodel.structure import Floats
from orchestrator.worker.mjspec.mujoco_internals import set_const_inputs
from orchestrator.worker.tasks import make_task


class RandomizedState(SimulationState):
    drawn: dict[str, Floats]
    """Key → ``(n_envs,)`` values of the running episodes."""
    places: Floats
    """``(n_envs, 2)`` where the terrain lies."""
    starts: dict[str, Floats]
    """As :attr:`EpisodeStarts.drawn`."""
    disturbances: DisturbanceState


def _drawn(keys: Sequence[RandomizedKey]) -> list[RandomizedKey]:
    """``keys`` without the numbers of lists, which nothing is drawn from."""
    return [key for key in keys if not key.distribution.is_constant]


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
        randomize: Mapping[str, Any],
        grid: GridPlaces | None = None,
        *,
        asymmetric: bool = False,
        **settings: Unpack[BatchSettings],
    ) -> None:
        model = load_model(xml)
        declared = by_number(randomize)
        randomize = {} if settings.get("nominal", False) else declared
        self._grid = grid
        made = make_task(task, model, task_options)
        self.terrain = terrain_of(randomize)
        self._terrain: RoughTerrain | None = None
        on_floor = model
        if self.terrain is not None:
            self._terrain = RoughTerrain(Path(xml), model, made, self.terrain)
            on_floor = self._terrain.model
        super().__init__(on_floor, made, robot=Path(xml).name, asymmetric=asymmetric, **settings)
        found = randomized_keys(Path(xml), model, randomize, None if grid is None else grid.grid)
        self.keys = _drawn(found)
        self.drawn = np.zeros((self.n_envs, len(self.keys)))
        """``(n_envs, len(keys))`` values of the running episodes."""
        for key in found:
            for change in key.changes:
                self._batch.expand(change.name)
        self._write_constants([key for key in found if key.distribution.is_constant])
        seen = np.zeros((self.n_envs, self._sensed_size), self.observation_dtype)
        self._disturbances = Disturbances(randomize, self.task, seen, grid)
        self._places = np.zeros((self.n_envs, 2))
        """``(n_envs, 2)`` where the terrain's middle lies in the world, in metres."""
        self._starts = EpisodeStarts(randomize, self.task, self._terrain, self._places, grid)
        self._privileged: list[str] = []
        """Keys that the critic sees: those of the robot, then delays and the period of pushes."""
        if asymmetric:
            is_drawn_by_episodes = grid is None and randomize is declared
            of_robot = (
                self.keys
                if is_drawn_by_episodes
                else _drawn(randomized_keys(Path(xml), model, declared))
            )
            self._privileged += [key.key for key in of_robot]
            self._privileged += [key for key in PRIVILEGED if key in declared]
        self._shown = self._views_of_privileged()
        """Places among these, and ``(n_envs,)`` views of what the running episodes have drawn."""
        self.privileged_names = (*self.privileged_names, *self._privileged)
        self.observation_size += len(self._privileged)
        # Contact forces are computed outside of the batch, at every step.
        self._models = [
            copy.copy(on_floor) if self._contact_forces else None for _ in range(self.n_envs)
        ]

    def _write_constants(self, constants: Sequence[RandomizedKey]) -> None:
        """Write what is the same in every episode, once."""
        for key in constants:
            for env in range(self.n_envs):
                write(self._batch, env, key.changes, key.distribution.extremes[0])
        changed = {change.name for key in constants for change in key.changes}
        if not self.keys and not changed.isdisjoint(set_const_inputs()):
            self._batch.set_const()  # where something is drawn, every episode does it

    def _views_of_privileged(self) -> list[tuple[int, NDArray[Any]]]:
        """Of the keys that the critic sees and that are drawn: place and values."""
        columns: dict[str, NDArray[Any]] = {
            key.key: self.drawn[:, number] for number, key in enumerate(self.keys)
        }
        columns |= self._disturbances.drawn
        return [
            (place, columns[key]) for place, key in enumerate(self._privileged) if key in columns
        ]

    def seed(self, seed: int | Sequence[int]) -> None:
        """As :meth:`Simulation.seed`."""
        super().seed(seed)
        self._disturbances.forget_noise()

    def model_of(self, env: int) -> mujoco.MjModel:
        """The robot of environment ``env`` in its running episode."""
        return self._models[env] or self._batch.get_model(env)

    def ground(self, env: int) -> TerrainPlace | None:
        """As :meth:`Simulation.ground`."""
        if self._terrain is None:
            return None
        x_m, y_m = self._terrain.position_in_body(self._places[env]).tolist()
        return TerrainPlace(geom=self._terrain.floor, x_m=x_m, y_m=y_m)

    def step(self, actions: ArrayLike) -> StepResult:
        """As :meth:`Simulation.step`; a push comes before the physics."""
        disturbances = self._disturbances
        moment = self.moment
        due = disturbances.due_pushes(self._lengths())
        if due is not None:
            self._push(due, lambda env: disturbances.push(env, self.generators[env], moment))
        return super().step(actions)

    def _arriving(self, action: NDArray[Any]) -> NDArray[Any]:
        return self._disturbances.disturbed_actions(action)

    def _sensed(self) -> NDArray[Any]:
        return self._disturbances.disturbed_observations(
            super()._sensed(), self.generators, self.moment
        )

    def _first_sensed(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        return self._disturbances.disturbed_first_observations(
            super()._first_sensed(envs), envs, self.generators, self.moment
        )

    def _sensed_last(self) -> NDArray[Any]:
        return self._disturbances.seen

    def _start_episodes(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        moment = self.moment
        for env in envs:
            rng = self.generators[env]
            self.drawn[env] = [draw(self._drawn_from(key, env), rng, moment) for key in self.keys]
        self._disturbances.begin_episodes(envs, self.generators, moment)
        self._write_robots(envs)
        return super()._start_episodes(envs)

    def _privileged_values(self, envs: NDArray[np.intp]) -> list[NDArray[Any]]:
        values = np.zeros((len(envs), len(self._privileged)))
        for place, drawn in self._shown:
            values[:, place] = drawn[envs]
        return [*super()._privileged_values(envs), values]

    def _initial_state(self, env: int) -> tuple[Floats, Floats]:
        qpos, qvel = super()._initial_state(env)
        self._starts.change(env, qpos, qvel, self.generators[env], self.moment)
        self._write_terrain(env)
        return qpos, qvel

    def _write_terrain(self, env: int | np.intp) -> None:
        if self._terrain is not None:
            position = self._terrain.position_in_body(self._places[env])
            self._batch.expand("geom_pos")[env, self._terrain.floor, :2] = position
            if (model := self._models[env]) is not None:
                self._batch.get_model(env, model)

    def _drawn_from(self, key: RandomizedKey, env: int) -> Distribution:
        if self._grid is None or key.table != GRID_TABLE:
            return key.distribution
        return self._grid.drawn_from(key.key, env) or key.distribution

    def _generators(self, seed: int | Sequence[int]) -> list[np.random.Generator]:
        if self._grid is None:
            return super()._generators(seed)
        return [generator(seed, env % self._grid.at_each) for env in range(self.n_envs)]

    def _episode(
        self,
        env: int,
        terminal_observation: NDArray[Any],
        terminated: bool,
        diverged: Mapping[int, str],
    ) -> Episode:
        episode = super()._episode(env, terminal_observation, terminated, diverged)
        if not self._is_measuring:
            return episode
        return dataclasses.replace(episode, drawn=self._drawn_by(env))

    def _write_robots(self, envs: NDArray[np.intp]) -> None:
        for env in envs:
            for key, value in zip(self.keys, self.drawn[env].tolist(), strict=True):
                write(self._batch, env, key.changes, value)
        if self.keys:
            self._batch.set_const(envs)
        for env in envs:
            if (model := self._models[env]) is not None:
                self._batch.get_model(env, model)

    def _drawn_by(self, env: int) -> dict[str, float]:
        """Keys, and what the running episode of environment ``env`` has drawn."""
        names = [key.key for key in self.keys]
        of_robot = dict(zip(names, self.drawn[env].tolist(), strict=True))
        return of_robot | self._disturbances.drawn_by(env) | self._starts.drawn_by(env)

    def _describe_divergence(self, env: int) -> str:
        drawn = [f"{key} = {value:.4g}" for key, value in self._drawn_by(env).items()]
        return super()._describe_divergence(env) + (
            f"; the episode had drawn {', '.join(drawn)}" if drawn else ""
        )

    def get_state(self) -> RandomizedState:
        return {
            **super().get_state(),
            "drawn": {
                key.key: self.drawn[:, number].copy() for number, key in enumerate(self.keys)
            },
            "places": self._places.copy(),
            "starts": self._starts.get_state(),
            "disturbances": self._disturbances.get_state(),
        }

    def set_state(self, state: SimulationState) -> NDArray[Any]:
        """As :meth:`Simulation.set_state`, with the robots and disturbances of the running
        episodes.
        """
        saved = cast(RandomizedState, state)
        super().set_state(state)
        for number, key in enumerate(self.keys):
            self.drawn[:, number] = saved["drawn"][key.key]
        self._write_robots(self._all_envs)
        self._places[:] = saved["places"]
        for env in self._all_envs:
            self._write_terrain(env)
        self._starts.set_state(saved["starts"])
        self._disturbances.set_state(saved["disturbances"])
        return self._same_observations()
