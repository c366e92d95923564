"""The batch of environments of a built-in task with pictures, for scripts. Training never
renders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env.base_vec_env import (
    VecEnv,
    VecEnvObs,
    VecEnvStepReturn,
    VecEnvWrapper,
)

from orchestrator.worker.envs.poses import pose_of
from orchestrator.worker.rendering.live_view import LiveView
from orchestrator.worker.runtime.sb3_internals import env_indices


class RenderedVecEnv(VecEnvWrapper):
    """Shows the first environment in a window after every step, or gives pictures ``(480, 640, 3)``
    of each.

    :param venv: has a ``simulation``.
    :param xml: the robot's MJCF.
    """

    def __init__(self, venv: VecEnv, xml: Path, render_mode: str) -> None:
        self._simulation: Any = venv.simulation  # type: ignore[attr-defined]
        self._view = LiveView(
            xml, render_mode, self._simulation.control_period_s, self._simulation.terrain
        )
        self._mode = render_mode
        super().__init__(venv)

    def reset(self) -> VecEnvObs:
        observations = self.venv.reset()
        self._show()
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        result = self.venv.step_wait()
        self._show()
        return result

    def _show(self) -> None:
        if self._mode == "human":
            self._view.render(pose_of(self._simulation, 0))

    def render(self, mode: str | None = None) -> np.ndarray | None:
        """The pictures of all environments as tiles of one; None in a window."""
        if self._mode == "human":
            self._show()
            return None
        return VecEnv.render(self, mode)

    def get_images(self) -> Sequence[np.ndarray | None]:
        return [self._view.render(pose_of(self._simulation, env)) for env in range(self.num_envs)]

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        if attr_name == "render_mode":  # which the environments in it do not know
            return [self._mode for _ in env_indices(self, indices)]
        return self.venv.get_attr(attr_name, indices)

    def close(self) -> None:
        self._view.close()
        self.venv.close()
