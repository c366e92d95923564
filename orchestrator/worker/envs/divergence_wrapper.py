"""Divergence detected in environments that simulate with MuJoCo but are not built-in tasks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from orchestrator.core.worker_spec import OnDivergence
from orchestrator.worker.envs.divergence import HINT, describe, quantities
from orchestrator.worker.runtime.failures import Diverged


def simulates_with_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether it has MuJoCo's ``model`` and ``data``, as gymnasium's own MuJoCo environments
    have.
    """
    base = env.unwrapped
    return type(getattr(base, "data", None)).__name__ == "MjData" and hasattr(base, "model")


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
        base: Any = env.unwrapped
        self._base = base
        # Not that of the control: the environment clips its actions.
        self._warnings = [
            warning for warning, quantity in quantities().items() if quantity != "control"
        ]
        self._watch(base.data)

    def _watch(self, data: Any) -> None:
        """Read the counters of ``data``, the simulation of the environment, from now on."""
        self._data = data
        # Views into the simulation's own memory: reading a counter costs 0.1 microseconds.
        self._counters = tuple(data.warning[warning] for warning in self._warnings)
        self._time_s = data.time
        """Simulated time before the step."""

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self._time_s = self._base.data.time
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        data = self._base.data
        if data is not self._data:  # some environments make a new one at every reset
            self._watch(data)
        positions, velocities, accelerations = self._counters
        if positions.number or velocities.number or accelerations.number:
            problem = self._describe(data)
            if self._on_divergence == "fail" or not np.isfinite(action).all():
                raise Diverged(f"{problem}; {HINT}" if self._on_divergence == "fail" else problem)
            for counter in self._counters:  # not every environment clears them when it starts anew
                counter.number = 0
            observation, _, _, _, info = result
            self._time_s = 0.0
            return _zeros(observation), 0.0, True, False, {**info, "divergence": problem}
        self._time_s = data.time
        return result

    def __getstate__(self) -> dict[str, Any]:
        # MuJoCo's counters cannot be pickled; the next step watches the restored simulation.
        return {**vars(self), "_data": None, "_counters": ()}

    def _describe(self, data: Any) -> str:
        warning = next(warning for warning in self._warnings if data.warning[warning].number)
        index = data.warning[warning].lastinfo
        model = self._base.model
        if type(model).__module__.startswith("mujoco."):
            what = describe(model, warning, index)
        else:  # another binding's names are asked for in other ways
            what = f"{quantities()[warning]} of degree of freedom {index}"
        return (
            f"{self._robot}: physics diverged {self._time_s:.4f} s after the start of the episode: "
            f"{what} is not finite or too large"
        )


def _zeros(observation: Any) -> Any:
    """Zeros in the form of ``observation``, which may be a dictionary."""
    if isinstance(observation, dict):
        return {key: _zeros(part) for key, part in observation.items()}
    return np.zeros_like(observation)
