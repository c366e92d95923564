"""The batch of environments in the shape Stable-Baselines3 trains on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import gymnasium
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn

from orchestrator.core.numbers.changing_numbers import START, TrainingMoment
from orchestrator.worker.envs.batch_interface import BatchSettings, SimulationState
from orchestrator.worker.envs.changing_task import ChangingTask
from orchestrator.worker.envs.episode_conditions import DRAWN, GridPlaces
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.runtime.sb3_internals import env_indices


class MujocoVecEnv(VecEnv):
    """``n_envs`` environments of one robot and task, stepped together in this process.

    Observations are ``(n_envs, observation_size)`` of the task's own dtype, actions ``(n_envs,
    nu)`` in the task's bounds. A new episode starts as soon as one ends; the info of the step then
    holds ``terminal_observation``, ``TimeLimit.truncated``, ``episode`` (``r``, ``l``, ``t``, as
    ``VecMonitor`` gives them) and, with ``measuring``, the task's ``measures`` and, under
    :data:`DRAWN`, what was drawn. It says under ``divergence`` how physics diverged, if that ended
    the episode.

    :raises ValueError: the MJCF does not compile, or the task does not fit the robot.
    """

    render_mode: str | None = None

    def __init__(
        self,
        xml_path: Path | str,
        task: str,
        task_options: Mapping[str, Any] | None = None,
        *,
        randomize: Mapping[str, Any] | None = None,
        grid: GridPlaces | None = None,
        asymmetric: bool = False,
        training: bool = False,
        **settings: Unpack[BatchSettings],
    ) -> None:
        """:param randomize: see :class:`RandomizedSimulation`, as for the next two.
        :param training: whether numbers begin as at the start of a training, for :meth:`move`.
        """
        self.simulation = make_simulation(
            xml_path, task, task_options, randomize, grid, asymmetric=asymmetric, **settings
        )
        self._task = ChangingTask(self.simulation, task, task_options or {})
        if training:
            self._task.move(START)
        self._actions: NDArray[np.floating[Any]] | None = None
        self._started = time.monotonic()
        super().__init__(self.simulation.n_envs, *self.simulation.env_spaces())

    def reset(self) -> NDArray[Any]:
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return self.simulation.reset()

    def step_async(self, actions: NDArray[np.floating[Any]]) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """:raises orchestrator.worker.envs.divergence.PhysicsDiverged:"""
        assert self._actions is not None, "step_async comes first"
        result = self.simulation.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for episode in result.ended:
            elapsed_s = round(time.monotonic() - self._started, 6)
            infos[episode.env] = {
                "terminal_observation": episode.terminal_observation,
                "TimeLimit.truncated": episode.truncated,
                "episode": {"r": episode.total_reward, "l": episode.length, "t": elapsed_s},
                "measures": episode.measures,
                DRAWN: episode.drawn,
            }
            if episode.divergence:
                infos[episode.env]["divergence"] = episode.divergence
        return result.observations, result.rewards.astype(np.float32), result.done, infos

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """New generators at once; the constructor's seed gives the constructor's generators
        again.
        """
        if seed is None:
            seed = int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]
        self.simulation.seed(seed)
        return [seed] * self.num_envs

    def move(self, moment: TrainingMoment) -> None:
        """Numbers of task and randomisation that change over the training are those of ``moment``
        from now on.
        """
        self._task.move(moment)

    def get_state(self) -> SimulationState:
        return self.simulation.get_state()

    def set_state(self, state: SimulationState) -> NDArray[Any]:
        return self.simulation.set_state(state)

    def close(self) -> None:
        """Nothing to release: memory is freed by the garbage collector."""

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        """The same value for each environment: they share their attributes."""
        return [getattr(self, attr_name) for _ in env_indices(self, indices)]

    def set_attr(
        self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None
    ) -> None:
        """Set it for all environments: they share their attributes."""
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *_args: Any, **_kwargs: Any) -> list[Any]:
        """:raises AttributeError: always; there is no environment object to call."""
        raise AttributeError(f"a batched environment has no method {method_name!r} per environment")

    def env_is_wrapped(
        self,
        wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]],
        indices: int | Iterable[int] | None = None,
    ) -> list[bool]:
        """True for ``Monitor``, whose ``info["episode"]`` this class gives itself."""
        return [issubclass(wrapper_class, Monitor) for _ in env_indices(self, indices)]
