"""From the job's spec to the vectorised environment it trains or is evaluated in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from orchestrator.contract import WorkerSpec
from orchestrator.worker.outcome import Diverged


def make(spec: WorkerSpec, job_dir: Path, *, n_envs: int, seed: int) -> VecEnv:
    """``n_envs`` environments in this process; rewards and observations as the task gives them.

    Environment *i* has the seed ``seed + i``, which is also what ``PPO(seed=seed)`` gives it.
    Every episode's end has ``infos[i]["episode"]`` with the return ``"r"`` and the length ``"l"``.
    """
    xml = str((job_dir / spec.xml).absolute()) if spec.xml is not None else None
    if spec.entry_point is None and spec.env is None:
        from orchestrator.worker.vec_env import MujocoVecEnv

        if xml is None or spec.task is None:
            raise ValueError(f"job {spec.job_id}: a built-in task needs both 'task' and 'xml'")
        return MujocoVecEnv(xml, spec.task, n_envs=n_envs, seed=seed, task_options=dict(spec.task_options) or None)
    return DummyVecEnv([_maker(spec, xml, seed + index) for index in range(n_envs)])


def normalized(spec: WorkerSpec, venv: VecEnv) -> VecNormalize:
    """Rewards, and observations where they are numbers (no images, no discrete ones), divided by running statistics.

    Rewards are scaled by the spread of the discounted return, with PPO's own ``gamma``.
    """
    space = venv.observation_space
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    numbers = all(isinstance(part, spaces.Box) and not is_image_space(part) for part in parts)
    return VecNormalize(venv, norm_obs=numbers, gamma=float(spec.hyperparameters.get("gamma", 0.99)))


def import_attribute(path: str) -> Any:
    """``"package.module:name"`` → the object.

    :raises ValueError: when ``path`` has another form; :raises ImportError: when there is no such thing.
    """
    module_name, _, name = path.partition(":")
    if not (module_name and name):
        raise ValueError(f"{path!r}: expected 'package.module:name'")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ImportError(f"{path!r}: module {module_name!r} ({module.__file__}) has no {name!r}") from None


def _maker(spec: WorkerSpec, xml: str | None, seed: int) -> Callable[[], gymnasium.Env[Any, Any]]:
    def make_one() -> gymnasium.Env[Any, Any]:
        if spec.entry_point is not None:
            env = import_attribute(spec.entry_point)(xml=xml, seed=seed, **spec.env_kwargs)
        else:
            assert spec.env is not None
            options: dict[str, Any] = {} if xml is None else {"xml_file": xml}
            env = gymnasium.make(spec.env, **options, **spec.env_kwargs)
        if _simulates_with_mujoco(env):
            env = PhysicsWatch(env, spec.xml or spec.env or str(spec.entry_point))
        return Monitor(env)

    return make_one


def _simulates_with_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    base = env.unwrapped
    return type(getattr(base, "data", None)).__name__ == "MjData" and hasattr(base, "model")


class PhysicsWatch(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends the training when MuJoCo reports an unstable simulation.

    MuJoCo resets such a simulation silently and goes on, so that nothing non-finite is ever seen from
    outside; only its warning counters tell.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], robot: str) -> None:
        import mujoco

        super().__init__(env)
        self._robot = robot
        # Views into the simulation's own memory: reading a counter costs 0.1 microseconds.
        data: Any = env.unwrapped
        warnings = data.data.warning
        self._counters = {
            "position": warnings[mujoco.mjtWarning.mjWARN_BADQPOS],
            "velocity": warnings[mujoco.mjtWarning.mjWARN_BADQVEL],
            "acceleration": warnings[mujoco.mjtWarning.mjWARN_BADQACC],
        }
        self._watched = tuple(self._counters.values())
        self._simulation = data
        self._time_s = 0.0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        positions, velocities, accelerations = self._watched
        if positions.number or velocities.number or accelerations.number:
            self._raise()
        self._time_s = self._simulation.data.time
        return result

    def _raise(self) -> None:
        what, counter = next((name, counter) for name, counter in self._counters.items() if counter.number)
        raise Diverged(
            f"{self._robot}: physics diverged after {self._time_s:.4f} s of the episode: "
            f"{what} of degree of freedom {counter.lastinfo} is not finite or huge"
        )
