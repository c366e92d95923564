"""Divergence detected in environments that simulate with MuJoCo but are not built-in tasks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from orchestrator.core.worker_spec import OnDivergence
from orchestrator.worker.envs.divergence import HINT, describe, quantities
from orchestrator.worker.runtime.failures import Diverged


def simulates_with_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether it has MuJoCo's ``model`` and ``data``, as gymnasium's own MuJoCo environments
    have.
    """
    base = env.unwrapped
    simulation = [getattr(base, name, None) for name in ("model", "data")]
    return all(type(part).__module__.startswith("mujoco.") for part in simulation)


class DivergenceCheck(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises :class:`Diverged` when MuJoCo reports an unstable simulation of the wrapped
    environment.

    With ``on_divergence="end-episode"`` the episode terminates instead, with a reward and an
    observation of zeros, and ``info["divergence"]`` describes it; unless the action was not finite,
    which is the policy's fault.

    :param robot: its name in the message.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], robot: str, on_divergence: OnDivergence = "fail"
    ) -> None:
        super().__init__(env)
        self._robot = robot
        self._on_divergence = on_divergence
        self._base: Any = env.unwrapped
        self._data: Any = None
        """The simulation whose counters are watched."""
        self._counters: tuple[Any, ...] = ()

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        data = self._base.data
        if data is not self._data:  # some environments make a new one at every reset
            self._data = data
            # Views into the simulation's own memory: reading a counter costs 0.1 microseconds.
            self._counters = tuple(data.warning[warning] for warning in quantities())
        # Not that of the control: the environment clips its actions.
        positions, velocities, accelerations, _ = self._counters
        if not (positions.number or velocities.number or accelerations.number):
            return result
        warning = next(warning for warning in quantities() if data.warning[warning].number)
        problem = (
            f"{self._robot}: physics diverged: "
            f"{describe(self._base.model, warning, data.warning[warning].lastinfo)} is not finite or too large"
        )
        if self._on_divergence == "fail":
            raise Diverged(f"{problem}; {HINT}")
        if not np.isfinite(action).all():
            raise Diverged(problem)
        for counter in self._counters:  # not every environment clears them when it starts anew
            counter.number = 0
        observation, _, _, _, info = result
        if isinstance(observation, dict):
            zeros: Any = {key: np.zeros_like(part) for key, part in observation.items()}
        else:
            zeros = np.zeros_like(observation)
        return zeros, 0.0, True, False, {**info, "divergence": problem}

    def __getstate__(self) -> dict[str, Any]:
        # MuJoCo's counters cannot be pickled; the next step watches the restored simulation.
        return {**vars(self), "_data": None, "_counters": ()}
