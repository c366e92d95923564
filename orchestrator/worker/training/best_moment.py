"""The best moment of an evaluation, as a pose that a still is drawn from later: here nothing is
rendered.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """Of an environment that is no task: its own, which may differ from those of other environments
    and episodes."""


class BestMoment:
    """The pose, in the episode with the highest return, after the :data:`STRIDE` control steps with
    the highest rewards; in a shorter episode the one at its start.
    """

    def begin(self, venv: Any) -> None:
        """Begin an evaluation.

        :param venv: its environments, which have been reset; wrapped in any way.
        """
        n_envs = venv.num_envs
        self._venv = venv.unwrapped
        self._is_known = True
        """Whether poses can be read: False once that has failed."""
        self._best = [self._pose(env) for env in range(n_envs)]
        """Of each environment's episode so far."""
        self._highest = np.full(n_envs, -np.inf)
        """Rewards before that pose."""
        self._rewards = np.zeros(n_envs)
        """Since the latest pose."""
        self._return = -np.inf
        self._chosen: PosedModel | None = self._best[0]

    def step(
        self,
        rewards: NDArray[np.floating[Any]],
        returns: NDArray[np.floating[Any]],
        lengths: NDArray[np.int_],
        ended: NDArray[np.bool_],
        counted: NDArray[np.bool_],
    ) -> None:
        """After a step: its rewards, and return and length of each episode; all ``(n_envs,)``.

        :param ended: which episodes have ended with it; their environments are at the beginning of
            the next one.
        :param counted: which environments run episodes that count.
        """
        self._rewards += rewards
        for env in map(int, np.flatnonzero(counted & (ended | (lengths % STRIDE == 0)))):
            if ended[env]:
                if returns[env] > self._return:
                    self._return = returns[env]
                    self._chosen = self._best[env]
                self._highest[env] = -np.inf
                self._best[env] = self._pose(env)
            elif self._rewards[env] >= self._highest[env]:
                self._highest[env] = self._rewards[env]
                self._best[env] = self._pose(env)
            self._rewards[env] = 0.0

    def _pose(self, env: int) -> PosedModel | None:
        """The pose of an environment. None where it does not simulate with MuJoCo, or its pose
        cannot be read.
        """
        if not self._is_known:
            return None
        try:
            if not isinstance(self._venv, SequentialVecEnv):
                return PosedModel(pose_of(self._venv.simulation, env))
            base: Any = self._venv.envs[env].unwrapped
            if not simulates_with_mujoco(base):
                return None
            return PosedModel(pose_of_data(base.model, base.data), base.model)
        except Exception as error:  # of an environment or task of the user's
            self._is_known = False
            say(f"no preview: {failures.describe(error)}")
            return None

    def content(self) -> bytes | None:
        """Return a file of arrays: ``state``, ``marker``, ``ground`` and ``model`` (in MuJoCo's
        binary format; empty for a task, whose robot is in the job directory). None where there is
        no pose, or its model is too large.
        """
        if self._chosen is None:
            return None
        pose, own_model = self._chosen
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
