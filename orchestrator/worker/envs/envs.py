"""From the job's spec to the vectorised environment it trains or is evaluated in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.normalize import LeanVecNormalize
from orchestrator.worker.envs.sequential import SequentialVecEnv
from orchestrator.worker.runtime import user_env
from orchestrator.worker.runtime.outcome import Diverged


def make(
    spec: WorkerSpec, job_dir: Path, *, n_envs: int, seed: int, measuring: bool = False, first_env: int = 0
) -> VecEnv:
    """``n_envs`` environments in this process; rewards and observations as the task gives them.

    Environment *i*, counted from ``first_env`` on (other ranks have those before and after), has the seed ``seed + i``,
    which is also what ``PPO(seed=seed)`` gives it.
    Every episode's end has ``infos[i]["episode"]`` with the return ``"r"`` and the length ``"l"``, and with
    ``measuring`` a built-in task's ``infos[i]["measures"]``.
    """
    xml = _xml(spec, job_dir)
    if spec.entry_point is None and spec.env is None:
        from orchestrator.worker.envs.vec_env import MujocoVecEnv

        if xml is None or spec.task is None:
            raise ValueError(f"job {spec.job_id}: a built-in task needs both 'task' and 'xml'")
        options = dict(spec.task_options) or None
        return MujocoVecEnv(
            xml,
            spec.task,
            n_envs=n_envs,
            seed=seed,
            task_options=options,
            measuring=measuring,
            first_env=first_env,
        )
    numbers = range(first_env, first_env + n_envs)
    return SequentialVecEnv(makers(spec, job_dir, numbers, seed), first_env)


def makers(
    spec: WorkerSpec, job_dir: Path, numbers: Iterable[int], seed: int
) -> list[Callable[[], gymnasium.Env[Any, Any]]]:
    """For environments that are not built-in tasks: environment *i* has the seed ``seed + i``."""
    return [_maker(spec, _xml(spec, job_dir), seed + number) for number in numbers]


def _xml(spec: WorkerSpec, job_dir: Path) -> str | None:
    return None if spec.xml is None else str((job_dir / spec.xml).absolute())


def normalized(spec: WorkerSpec, venv: VecEnv, kind: type[VecNormalize] = LeanVecNormalize) -> VecNormalize:
    """Rewards, and observations where they are numbers (no images, no discrete ones), divided by running statistics.

    Of a ``Dict`` observation the parts that are numbers. Rewards are scaled by the spread of the discounted
    return, with PPO's own ``gamma``.
    """
    space, gamma = venv.observation_space, float(spec.hyperparameters.get("gamma", 0.99))
    if isinstance(space, spaces.Dict):
        keys = [key for key, part in space.spaces.items() if _is_numbers(part)]
        return kind(venv, norm_obs=bool(keys), norm_obs_keys=keys or None, gamma=gamma)
    return kind(venv, norm_obs=_is_numbers(space), gamma=gamma)


def _is_numbers(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)


def _maker(spec: WorkerSpec, xml: str | None, seed: int) -> Callable[[], gymnasium.Env[Any, Any]]:
    def make_one() -> gymnasium.Env[Any, Any]:
        env = user_env.make(env=spec.env, entry_point=spec.entry_point, xml=xml, seed=seed, env_kwargs=spec.env_kwargs)
        # Stable-Baselines3 seeds the spaces of the first environment alone; some environments sample from theirs.
        env.action_space.seed(seed)
        env.observation_space.seed(seed)
        if simulates_with_mujoco(env):
            env = PhysicsWatch(env, spec.xml or spec.env or str(spec.entry_point))
        return Monitor(env)

    return make_one


def simulates_with_mujoco(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether it has MuJoCo's ``model`` and ``data``, as gymnasium's own MuJoCo environments have."""
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
        base: Any = env.unwrapped
        self._simulation = base
        self._kinds = {
            mujoco.mjtWarning.mjWARN_BADQPOS: "position",
            mujoco.mjtWarning.mjWARN_BADQVEL: "velocity",
            mujoco.mjtWarning.mjWARN_BADQACC: "acceleration",
        }
        self._watch(base.data)

    def _watch(self, data: Any) -> None:
        self._data = data
        # Views into the simulation's own memory: reading a counter costs 0.1 microseconds.
        self._counters = tuple(data.warning[kind] for kind in self._kinds)
        self._time_s = data.time

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        data = self._simulation.data
        if data is not self._data:  # some environments make a new one at every reset
            self._watch(data)
        positions, velocities, accelerations = self._counters
        if positions.number or velocities.number or accelerations.number:
            self._raise()
        self._time_s = data.time
        return result

    def _raise(self) -> None:
        what, counter = next(
            (name, counter)
            for name, counter in zip(self._kinds.values(), self._counters, strict=True)
            if counter.number
        )
        raise Diverged(
            f"{self._robot}: physics diverged after {self._time_s:.4f} s of the episode: "
            f"{what} of degree of freedom {counter.lastinfo} is not finite or huge"
        )
