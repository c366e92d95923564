"""The best moment of an evaluation, as a pose that a still is drawn from later: here nothing is
rendered.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from orchestrator.worker.envs.poses import Pose, pose_of

STRIDE = 10
"""Control steps between two poses of which one may be the best."""


class BestMoment:
    """The pose after the :data:`STRIDE` control steps with the highest rewards, in the first episode
    of the first environment of a task; in a shorter episode the one at its start.
    """

    def begin(self, venv: Any) -> None:
        """Begin an evaluation in ``venv``, which has been reset and may be wrapped."""
        self._simulation = venv.unwrapped.simulation
        self._has_ended = False
        self._chosen: Pose = pose_of(self._simulation, 0)
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
                self._chosen = pose_of(self._simulation, 0)
            self._rewards = 0.0

    def content(self) -> bytes:
        """Return a file of the arrays ``state``, ``marker`` and ``ground``."""
        pose = self._chosen
        ground = [] if pose.ground is None else [pose.ground.geom, pose.ground.x_m, pose.ground.y_m]
        file = io.BytesIO()
        np.savez_compressed(
            file,
            state=pose.state,
            marker=np.array(pose.marker or (), float),
            ground=np.array(ground, float),
        )
        return file.getvalue()
