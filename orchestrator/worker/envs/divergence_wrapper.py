"""Divergence detected in environments that simulate with MuJoCo but are not built-in tasks."""

from __future__ import annotations

from typing import Any

import gymnasium

from orchestrator.worker.envs.divergence import describe, quantities
from orchestrator.worker.runtime.failures import Diverged


def simulates_with_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether it has MuJoCo's ``model`` and ``data``, as gymnasium's own MuJoCo environments have."""
    base = env.unwrapped
    return type(getattr(base, "data", None)).__name__ == "MjData" and hasattr(base, "model")


class DivergenceCheck(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises :class:`Diverged` when MuJoCo reports an unstable simulation of the wrapped environment.

    :param robot: its name in the message.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], robot: str) -> None:
        super().__init__(env)
        self._robot = robot
        base: Any = env.unwrapped
        self._simulation = base
        self._warnings = tuple(quantities())[:3]  # without that of the control: the environment clips its actions
        self._observe(base.data)

    def _observe(self, data: Any) -> None:
        self._data = data
        # Views into the simulation's own memory: reading a counter costs 0.1 microseconds.
        self._counters = tuple(data.warning[kind] for kind in self._warnings)
        self._time_s = data.time

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        data = self._simulation.data
        if data is not self._data:  # some environments make a new one at every reset
            self._observe(data)
        positions, velocities, accelerations = self._counters
        if positions.number or velocities.number or accelerations.number:
            warning = next(kind for kind in self._warnings if data.warning[kind].number)
            model, index = self._simulation.model, data.warning[warning].lastinfo
            what = f"{quantities()[warning]} of degree of freedom {index}"
            if type(model).__module__.startswith("mujoco."):  # another binding's names are asked for in other ways
                what = describe(model, warning, index)
            raise Diverged(
                f"{self._robot}: physics diverged {self._time_s:.4f} s after the start of the episode: "
                f"{what} is not finite or too large"
            )
        self._time_s = data.time
        return result
