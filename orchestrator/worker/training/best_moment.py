"""The best moment of an evaluation, as a pose that a still is drawn from later: here nothing is
rendered.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from orchestrator.worker.envs.divergence_wrapper import simulates_with_mujoco
from orchestrator.worker.envs.poses import Pose, pose_of, pose_of_data
from orchestrator.worker.envs.sequential import SequentialVecEnv
from orchestrator.worker.runtime import failures
from orchestrator.worker.runtime.progress import say

if TYPE_CHECKING:
    import mujoco

STRIDE = 10
"""Control steps between two poses of which one may be the best."""
MOST_MODEL_BYTES = 4 << 20
"""Of the model of an environment that is no task. A larger one is not kept, and there is no
still."""


class PosedModel(NamedTuple):
    pose: Pose
    model: mujoco.MjModel | None = None
    """Of an environment that is no task."""


class BestMoment:
    """The pose after the :data:`STRIDE` control steps with the highest rewards, in the first episode
    of the first environment; in a shorter episode the one at its start.
    """

    def begin(self, venv: Any) -> None:
        """Begin an evaluation.

        :param venv: its environments, which have been reset; wrapped in any way.
        """
        self._venv = venv.unwrapped
        self._has_ended = False
        self._chosen = self._pose()
        self._highest = -math.inf
        """Rewards before that pose."""
        self._rewards = 0.0
        """Since the latest pose that was judged."""

    def step(self, reward: float, length: int, *, ended: bool) -> None:
        """Judge the pose after a step of the first environment.

        :param length: control steps of the episode. :param ended: whether it has ended.
        """
        self._has_ended = self._has_ended or ended
        if self._has_ended:
            return
        self._rewards += reward
        if length % STRIDE == 0:
            if self._rewards >= self._highest:
                self._highest = self._rewards
                self._chosen = self._pose()
            self._rewards = 0.0

    def _pose(self) -> PosedModel | None:
        """The present pose. None where the environment does not simulate with MuJoCo, or its pose
        cannot be read.
        """
        try:
            if not isinstance(self._venv, SequentialVecEnv):
                return PosedModel(pose_of(self._venv.simulation, 0))
            base: Any = self._venv.envs[0].unwrapped
            if not simulates_with_mujoco(base):
                return None
            return PosedModel(pose_of_data(base.model, base.data), base.model)
        except Exception as error:  # of an environment or task of the user's
            self._has_ended = True
            say(f"no preview: {failures.describe(error)}")
            return None

    def content(self) -> bytes | None:
        """Return a file of arrays: ``state``, ``marker``, ``ground`` and ``model`` (in MuJoCo's
        binary format; empty for a task, whose robot is in the job directory). None where there is
        no pose, or its model is too large.
        """
        if self._chosen is None:
            return None
        try:
            return self._file(*self._chosen)
        except Exception as error:  # of a model of the user's: the evaluation needs no picture
            say(f"no preview: {failures.describe(error)}")
            return None

    def _file(self, pose: Pose, own_model: mujoco.MjModel | None) -> bytes | None:
        model = np.empty(0, np.uint8)
        if own_model is not None:
            import mujoco

            model = np.empty(mujoco.mj_sizeModel(own_model), np.uint8)
            if len(model) > MOST_MODEL_BYTES:
                return None
            mujoco.mj_saveModel(own_model, None, model)
        ground = [] if pose.ground is None else [pose.ground.geom, pose.ground.x_m, pose.ground.y_m]
        file = io.BytesIO()
        np.savez_compressed(
            file,
            state=pose.state,
            marker=np.array(pose.marker or (), float),
            ground=np.array(ground, float),
            model=model,
        )
        return file.getvalue()
