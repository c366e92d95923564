"""From the job's spec to the vectorised environment it trains or is evaluated in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.divergence_wrapper import DivergenceCheck, simulates_with_mujoco
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.normalize import FastVecNormalize
from orchestrator.worker.envs.sequential import SequentialVecEnv, numbered_seed
from orchestrator.worker.runtime import user_env


def make(
    spec: WorkerSpec,
    job_dir: Path,
    *,
    n_envs: int,
    seed: int,
    measuring: bool = False,
    first_env: int = 0,
    training: bool = False,
    grid: GridPlaces | None = None,
    nominal: bool = False,
) -> VecEnv:
    """``n_envs`` environments in this process, with rewards and observations as the task gives
    them.

    Environment *i*, counted from ``first_env`` (ranks share one numbering), of a task draws from a
    stream that depends on ``seed`` and *i* alone; on a grid, *i* is its number at its point. One that
    is no task has the seed ``seed + i``, as ``PPO(seed=seed)`` would give it. At the end of an episode
    ``infos[i]["episode"]`` holds the return ``"r"`` and the length ``"l"`` and, with ``measuring``,
    ``infos[i]["measures"]`` the measures of a task, built in or of the user.

    :param training: whether numbers that change over the training begin at its start; otherwise
        they are those of its end.
    :param grid: for tasks: where the environments are on a grid.
    :param nominal: for tasks: whether nothing of ``randomize`` is drawn.
    """
    if is_batched(spec):
        from orchestrator.worker.envs.vec_env import MujocoVecEnv

        xml = robot_path(spec, job_dir)
        if xml is None or spec.task is None:
            raise ValueError(f"job {spec.job_id}: a built-in task needs both 'task' and 'xml'")
        return MujocoVecEnv(
            xml,
            spec.task,
            dict(spec.task_options),
            n_envs=n_envs,
            seed=seed,
            measuring=measuring,
            first_env=first_env,
            on_divergence=spec.on_divergence,
            n_threads=spec.cores,
            randomize=spec.randomize,
            training=training,
            grid=grid,
            asymmetric=spec.asymmetric,
            nominal=nominal,
        )
    return SequentialVecEnv(
        makers(spec, job_dir, range(first_env, first_env + n_envs), seed), first_env
    )


def makers(
    spec: WorkerSpec, job_dir: Path, numbers: Iterable[int], seed: int
) -> list[Callable[[], gymnasium.Env[Any, Any]]]:
    """One function per environment that is not a built-in task; environment *i* has the seed ``seed
    + i``.
    """
    return [
        functools.partial(_make_one, spec, robot_path(spec, job_dir), numbered_seed(seed, number))
        for number in numbers
    ]


def normalized_env(
    spec: WorkerSpec, venv: VecEnv, kind: type[VecNormalize] = FastVecNormalize
) -> VecNormalize:
    """Rewards, and observations that are real numbers (no images, no discrete ones), divided by
    running statistics.

    In a ``Dict`` observation each part is treated by its own kind. Rewards are scaled by the
    standard deviation of the discounted return, with PPO's own ``gamma``.
    """
    space = venv.observation_space
    gamma = float(spec.hyperparameters.get("gamma", 0.99))
    if isinstance(space, spaces.Dict):
        keys = [key for key, part in space.spaces.items() if _is_numeric(part)]
        return kind(venv, norm_obs=bool(keys), norm_obs_keys=keys or None, gamma=gamma)
    return kind(venv, norm_obs=_is_numeric(space), gamma=gamma)


def frozen_normalized_env(
    spec: WorkerSpec, venv: VecEnv, statistics: Mapping[str, Any]
) -> VecNormalize:
    """``venv`` with observations as a trained policy saw them; rewards are the environment's own.

    :param statistics: ``obs_rms`` and ``ret_rms`` of its training; without ``obs_rms`` where its
        observations were not normalised.
    """
    wrapped = normalized_env(spec, venv)
    for name in ("obs_rms", "ret_rms"):
        if name in statistics:
            setattr(wrapped, name, statistics[name])
    wrapped.training = False
    wrapped.norm_reward = False
    return wrapped


def is_batched(spec: WorkerSpec) -> bool:
    """Whether its environment is a task over the batched simulation, built in or of the user."""
    return spec.env is None and spec.entry_point is None


def robot_path(spec: WorkerSpec, job_dir: Path) -> str | None:
    """The robot in the job directory, absolute."""
    return None if spec.xml is None else str((job_dir / spec.xml).absolute())


def _is_numeric(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and not is_image_space(space)


def _make_one(spec: WorkerSpec, xml: str | None, seed: int) -> gymnasium.Env[Any, Any]:
    env = user_env.make(
        env=spec.env, entry_point=spec.entry_point, xml=xml, seed=seed, env_kwargs=spec.env_kwargs
    )
    # Stable-Baselines3 seeds the spaces of the first environment alone; some environments sample
    # from theirs.
    env.action_space.seed(seed)
    env.observation_space.seed(seed)
    if simulates_with_mujoco(env):
        env = DivergenceCheck(
            env, spec.xml or spec.env or str(spec.entry_point), spec.on_divergence
        )
    return Monitor(env)
