"""The best moment of an evaluation, as a pose that a still is drawn from later: here nothing is
rendered.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
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
"""Control steps between two poses of which one may be the best; each is judged by as many before it
and after it."""
MOST_MODEL_BYTES = 4 << 20
"""Of the model of an environment that is no task. A larger one is not kept, and there is no
still."""


class PosedModel(NamedTuple):
    pose: Pose
    model: mujoco.MjModel | None = None
    """Of an environment that is no task: its own, which may differ from those of other environments
    and episodes."""


class BestMoment:
    """The pose, in the episode with the highest return, around which the rewards were highest.

    Of equal ones it is the latest. In an episode that is too short to judge any, it is the latest
    that was kept.
    """

    def __init__(self) -> None:
        self._read: Callable[[int], PosedModel] | None = None
        """Reads the pose of an environment; None where there is none: it does not simulate with
        MuJoCo."""
        self._return = -np.inf
        self._chosen: PosedModel | None = None

    def begin(self, venv: Any) -> None:
        """Begin an evaluation.

        :param venv: its environments, which have been reset; wrapped in any way.
        """
        n_envs = venv.num_envs
        self._find_poses(venv.unwrapped)
        self._latest = [self._pose(env) for env in range(n_envs)]
        self._best: list[PosedModel | None] = [None] * n_envs
        self._highest = np.full(n_envs, -np.inf)
        """Rewards around that best pose of the episode so far."""
        self._rewards = np.zeros(n_envs)
        """Since the latest pose."""
        self._before = np.full(n_envs, np.nan)
        """Rewards of the :data:`STRIDE` steps before the latest pose; NaN where it is the first of
        an episode."""

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
        if self._read is None:
            return
        self._rewards += rewards
        for env in map(int, np.flatnonzero(counted & (ended | (lengths % STRIDE == 0)))):
            if ended[env]:
                if returns[env] > self._return:
                    self._return = returns[env]
                    self._chosen = self._best[env] or self._latest[env]
                self._best[env] = None
                self._before[env] = np.nan
                self._highest[env] = -np.inf
            else:
                around = self._before[env] + self._rewards[env]
                if around >= self._highest[env]:
                    self._highest[env] = around
                    self._best[env] = self._latest[env]
                self._before[env] = self._rewards[env]
            self._latest[env] = self._pose(env)
            self._rewards[env] = 0.0

    def content(self) -> bytes | None:
        """A file of arrays: ``state``, ``marker``, ``ground`` and ``model`` (in MuJoCo's binary
        format; empty for a task, whose robot is in the job directory). None where there is no pose,
        or it cannot be kept.
        """
        try:
            return self._content()
        # Of any kind: the training and its evaluation are done, and need no picture.
        except Exception as error:
            say(f"no preview: {failures.describe(error)}")
            return None

    def _content(self) -> bytes | None:
        if self._chosen is None:
            return None
        model = np.empty(0, np.uint8)
        if self._chosen.model is not None:
            import mujoco

            size = mujoco.mj_sizeModel(self._chosen.model)
            if size > MOST_MODEL_BYTES:
                say(f"no preview: the model of the environment has {size / 2**20:,.0f} MiB")
                return None
            model = np.empty(size, np.uint8)
            mujoco.mj_saveModel(self._chosen.model, None, model)
        file = io.BytesIO()
        pose = self._chosen.pose
        marker = np.array(() if pose.marker is None else pose.marker, float)
        ground = np.zeros(0)
        if pose.ground is not None:
            ground = np.array([pose.ground.geom, pose.ground.x_m, pose.ground.y_m])
        np.savez_compressed(file, state=pose.state, marker=marker, ground=ground, model=model)
        return file.getvalue()

    def _find_poses(self, venv: Any) -> None:
        if isinstance(venv, SequentialVecEnv):
            if all(map(simulates_with_mujoco, venv.envs)):
                self._find_in_environments([env.unwrapped for env in venv.envs])
            return
        self._read = lambda env: PosedModel(pose_of(venv.simulation, env))

    def _find_in_environments(self, envs: Sequence[Any]) -> None:
        """Read poses from environments of gymnasium or the user, unless their model and data are of
        another binding of MuJoCo.
        """
        if all(type(env.model).__module__.startswith("mujoco.") for env in envs):
            self._read = lambda env: PosedModel(
                pose_of_data(envs[env].model, envs[env].data), envs[env].model
            )

    def _pose(self, env: int) -> PosedModel | None:
        if self._read is None:
            return None
        try:
            return self._read(env)
        except Exception as error:  # of an environment or task of the user's
            self._read = None
            say(f"no preview: {failures.describe(error)}")
            return None
