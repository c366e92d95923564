"""A built-in task as an environment of gymnasium:
``gymnasium.make("orchestrator.envs:orchestrator/forward-v0", xml="my.xml")``.

Physics, observations, rewards and ends of episodes are those of training
(:mod:`orchestrator.worker.envs.simulation`). Neither torch nor Stable-Baselines3 is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from orchestrator.core.errors import UsageError
from orchestrator.core.gymnasium_ids import env_id
from orchestrator.core.text import shortened
from orchestrator.core.worker_spec import OnDivergence
from orchestrator.worker.envs.poses import pose_of
from orchestrator.worker.envs.simulation_factory import make_simulation
from orchestrator.worker.rendering.live_view import RENDER_MODES, LiveView, check_render_mode
from orchestrator.worker.rendering.offscreen import Picture


class TaskEnv(gymnasium.Env[NDArray[Any], NDArray[Any]]):
    """One robot and one task.

    Observations are ``(observation_size,)`` of the task's own dtype, actions ``(nu,)`` float32 in
    the task's bounds. The info of an episode's last step has the task's ``measures`` and, if that
    ended it, under ``divergence`` how physics diverged. ``reset(seed=s)`` starts the episodes of
    environment 0 of a vectorised environment with the same seed.

    :param xml: the robot's MJCF, used where it lies.
    :param task: its name as in a job file.
    :param render_mode: ``"human"`` (MuJoCo's viewer in real time), ``"rgb_array"`` (pictures) or
        None.
    :param task_options: as in a job file, ``max_episode_steps`` among them, which
        ``gymnasium.make`` keeps for itself.
    :param on_divergence: ``"fail"`` raises where physics diverges, ``"end-episode"`` terminates the
        episode.
    :param randomize: what every episode draws, as in a job file.
    :param asymmetric: whether the last observations are what it has drawn.
    :param nominal: whether nothing is drawn, whatever ``randomize`` says.
    :param options: more task options, by name.
    :raises UsageError: the robot does not exist, compile or fit the task, or an option is wrong.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 25}  # type: ignore[misc]

    def __init__(
        self,
        xml: str | os.PathLike[str] | None = None,
        *,
        task: str,
        render_mode: str | None = None,
        task_options: Mapping[str, Any] | None = None,
        on_divergence: OnDivergence = "fail",
        randomize: Mapping[str, Any] | None = None,
        asymmetric: bool = False,
        nominal: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(xml, str | os.PathLike) or not os.path.isfile(xml):  # noqa: PTH113 - text may be too long for a Path
            example = f'gymnasium.make("{env_id(task)}", xml="my_robot.xml")'
            raise UsageError(f"xml = {shortened(str(xml))}: expected an MJCF file: {example}")
        check_render_mode(render_mode)
        try:
            self._simulation = make_simulation(
                Path(xml),
                task,
                {**(task_options or {}), **options},
                randomize,
                asymmetric=asymmetric,
                n_envs=1,
                seed=int(np.random.SeedSequence().entropy),  # type: ignore[arg-type]
                measuring=True,
                autoreset=False,
                on_divergence=on_divergence,
                nominal=nominal,
            )
        except ValueError as error:
            raise UsageError(f"{xml}: {error}") from error
        self.observation_space, self.action_space = self._simulation.env_spaces()
        [self._np_random] = self._simulation.generators
        period_s = self._simulation.control_period_s
        # In real time.
        self.metadata = {**type(self).metadata, "render_fps": max(1, round(1 / period_s))}  # type: ignore[misc]
        self.render_mode = render_mode
        self._view: LiveView | None = None
        if render_mode is not None:
            self._view = LiveView(Path(xml), render_mode, period_s, self._simulation.terrain)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._simulation.seed(seed)
            [self._np_random] = self._simulation.generators
        [observation] = self._simulation.reset()
        self._show()
        return observation, {}

    def step(self, action: NDArray[Any]) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """One control step.

        :raises orchestrator.worker.envs.divergence.PhysicsDiverged: with ``on_divergence = "fail"``.
        """
        result = self._simulation.step(np.asarray(action)[None])
        terminated = False
        truncated = False
        info: dict[str, Any] = {}
        for episode in result.ended:
            terminated = not episode.truncated
            truncated = episode.truncated
            info = {"measures": dict(episode.measures)}
            if episode.divergence:
                info["divergence"] = episode.divergence
        self._show()
        return result.observations[0], float(result.rewards[0]), terminated, truncated, info

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def render(self) -> Picture | None:
        """``(480, 640, 3)`` uint8 with ``"rgb_array"``; None otherwise."""
        return None if self._view is None else self._view.render(pose_of(self._simulation, 0))

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
