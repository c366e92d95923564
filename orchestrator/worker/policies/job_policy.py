"""``orchestrator.load`` and ``orchestrator.make_env``: a job's trained policy and environments, in
a script's process.

Environments are made by :mod:`orchestrator.worker.envs.env_factory`, as for training and
evaluation, from what the job directory holds alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import torch
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from orchestrator.core.errors import (
    AlteredRobotWarning,
    OrchestratorError,
    UnfinishedPolicyWarning,
    UsageError,
)
from orchestrator.core.job_reader import outcome_sentence, read_job
from orchestrator.core.paths import JobPaths, absolute
from orchestrator.core.robot_hash import altered_since_training
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import another_robot, env_factory
from orchestrator.worker.policies.task_env import TaskEnv
from orchestrator.worker.runtime import failures
from orchestrator.worker.training import evaluation, trained_policy, training_state
from orchestrator.worker.training.trained_policy import Checkpoint

if TYPE_CHECKING:
    from orchestrator.worker.training.algorithms import Model

StrPath = str | os.PathLike[str]


def load(
    job_dir: StrPath,
    *,
    checkpoint: int | StrPath | None = None,
    n_envs: int | None = 1,
    render_mode: str | None = None,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> tuple[Model, Any]:
    """A job's trained policy and environments for it: ``model.predict(observation)`` and
    ``env.step(action)``.

    The model is stock Stable-Baselines3's, on the CPU. It is for acting: it has no environment and
    no replay buffer. The environments have the job's own robot (the copy in the job directory),
    task and options. Observations are normalised as at the end of training, with frozen statistics;
    rewards are the task's own. The process's random generators stay as they were.

    :param job_dir: a job's directory, ``RUN_DIR/jobs/JOB_ID``.
    :param checkpoint: env_steps of one of the job's checkpoints, ``"latest"``, or a file (a pickle:
        name only files that you trust). Without it: the finished policy, or the latest checkpoint
        with an :class:`UnfinishedPolicyWarning`.
    :param n_envs: environments in a ``VecEnv``; None for one ``gymnasium.Env``, also with
        normalised observations.
    :param render_mode: ``"human"``, ``"rgb_array"`` or None. In windows, each environment has one.
    :param seed: of the environments. By default it is that of the job's evaluation: with as many
        environments as in ``eval.json``, ``evaluate_policy`` gives the deterministic returns of
        that file.
    :param randomize: whether episodes draw what the job's ``randomize`` says; False for the robot
        of the file, without noise, delays, pushes and terrain.
    :param xml: an MJCF in the place of the job's robot: the same robot with other masses, gains or
        surroundings. It is used as it is: changes by ``model`` of the job are not made in it.
    :raises UsageError: there is no such job, policy or checkpoint, it cannot be loaded, or its
        environment cannot be made here; or the policy does not fit the robot ``xml``.
    """
    paths, spec = _job(job_dir)
    if checkpoint is None:
        trained = trained_policy.newest_policy(paths, spec)
    else:
        trained = trained_policy.read_checkpoint(paths, str(checkpoint))
    generators = training_state.generators(torch.device("cpu"))
    with _explaining(spec):
        made = _make(paths, spec, trained, n_envs, render_mode, seed, xml, nominal=not randomize)
        model = trained_policy.load_model(spec, paths, made.venv, trained)
        # Making a model seeds them, and its environments.
        training_state.restore_generators(generators)
        made.venv.seed(made.seed)
    if checkpoint is None and model.num_timesteps < spec.total_timesteps:
        done = f"{model.num_timesteps:,} of {spec.total_timesteps:,} env_steps"
        message = f"{spec.job_id}: the policy was trained for {done}. {outcome_sentence(paths)}"
        warnings.warn(message, UnfinishedPolicyWarning, stacklevel=2)
    return model, made.for_caller


def make_env(
    job_dir: StrPath,
    n_envs: int | None = 1,
    normalize: bool = True,
    render_mode: str | None = None,
    *,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> Any:
    """The environments of a job as :func:`load` gives them, without its policy.

    :param normalize: whether observations are normalised, where the job normalises, with the
        statistics of the finished policy, or of the latest checkpoint. Without it, a job needs no
        policy.
    :raises UsageError: as :func:`load`.
    """
    paths, spec = _job(job_dir)
    spec = dataclasses.replace(spec, normalize=spec.normalize and normalize)
    trained = trained_policy.newest_policy(paths, spec) if spec.normalize else None
    with _explaining(spec):
        made = _make(paths, spec, trained, n_envs, render_mode, seed, xml, nominal=not randomize)
    return made.for_caller


def _job(job_dir: StrPath) -> tuple[JobPaths, WorkerSpec]:
    """Read a job; warn where its robot was altered since the training.

    :raises UsageError: it is not the directory of a job that has been launched.
    """
    paths, spec = read_job(absolute(job_dir))
    try:
        altered = altered_since_training(paths, spec.xml)
    except FileNotFoundError:  # a benchmark's jobs have no record of their robot
        altered = None
    except (OSError, ValueError) as error:
        altered = f"{paths.root}: whether its robot was altered is not known: {error}"
    if altered is not None:
        warnings.warn(altered, AlteredRobotWarning, stacklevel=3)
    return paths, spec


class _Made(NamedTuple):
    venv: VecEnv
    """Without normalisation; seeded."""
    for_caller: Any
    """``venv`` with normalisation, or the single environment in it."""
    seed: int


def _make(
    paths: JobPaths,
    spec: WorkerSpec,
    trained: Checkpoint | None,
    n_envs: int | None,
    render_mode: str | None,
    seed: int | None,
    other_robot: StrPath | None,
    *,
    nominal: bool,
) -> _Made:
    """Make the job's environments.

    :param n_envs: None for one ``gymnasium.Env``, which is then the only one in a ``DummyVecEnv``.
    :param seed: None for that of the job's evaluation.
    """
    if n_envs is not None and n_envs < 1:
        raise UsageError(
            f"n_envs = {n_envs}: expected a whole number of at least 1, or None for one gymnasium.Env"
        )
    if seed is None:
        seed = evaluation.environment_seed(spec)
    if other_robot is not None:
        xml = absolute(other_robot)
        spec = another_robot.with_robot(spec, paths.root, xml, nominal=nominal)
    is_task = env_factory.is_batched(spec)
    venv: VecEnv
    if is_task and (n_envs is None or render_mode is not None):
        robot = Path(str(env_factory.robot_path(spec, paths.root)))
        make = functools.partial(
            TaskEnv,
            robot,
            task=str(spec.task),
            render_mode=render_mode,
            task_options=spec.task_options,
            on_divergence=spec.on_divergence,
            randomize=spec.randomize,
            asymmetric=spec.asymmetric,
            nominal=nominal,
        )
        venv = DummyVecEnv([lambda: Monitor(make())] * (n_envs or 1))
    else:
        if render_mode is not None:
            env_kwargs = {**spec.env_kwargs, "render_mode": render_mode}
            spec = dataclasses.replace(spec, env_kwargs=env_kwargs)
        venv = env_factory.make(
            spec, paths.root, n_envs=n_envs or 1, seed=seed, measuring=True, nominal=nominal
        )
    venv.seed(seed)
    for_caller: Any = trained_policy.normalized_env(spec, paths, venv, trained)
    if n_envs is None:
        assert isinstance(venv, DummyVecEnv)
        env: gymnasium.Env[Any, Any] = FirstResetSeeded(venv.envs[0], seed)
        if isinstance(for_caller, VecNormalize):
            space = for_caller.observation_space
            env = TransformObservation(env, for_caller.normalize_obs, space)
        for_caller = env
    return _Made(venv, for_caller, seed)


class FirstResetSeeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds the first ``reset()`` that is given no seed; later ones go on from there."""

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int) -> None:
        super().__init__(env)
        self._seed: int | None = seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            seed = self._seed
        self._seed = None
        given = {} if options is None else {"options": options}  # a user's may take none
        return self.env.reset(seed=seed, **given)


@contextlib.contextmanager
def _explaining(spec: WorkerSpec) -> Iterator[None]:
    """Import modules from the job's folder first; afterwards, for what is imported late, last.

    :raises UsageError: in place of whatever the block raises.
    """
    folder = spec.search_path or ""
    if folder:
        _refuse_modules_of_others(spec, folder)
        sys.path.insert(0, folder)
    try:
        yield
    except OrchestratorError:
        raise
    except Exception as error:
        raise UsageError(
            f"{spec.job_id}: it cannot be loaded here: {failures.describe(error)}"
        ) from error
    finally:
        if folder:
            sys.path.remove(folder)  # the first
            if folder not in sys.path:
                sys.path.append(folder)


def _refuse_modules_of_others(spec: WorkerSpec, folder: str) -> None:
    """Refuse a job whose module has the name of another one that this program has imported."""
    for name in (spec.task, spec.entry_point, spec.env, spec.algo):
        if name is None or ":" not in name:
            continue
        module = name.partition(":")[0].partition(".")[0]
        loaded = getattr(sys.modules.get(module), "__file__", None)
        own = PathFinder.find_spec(module, [folder])
        if loaded is None or own is None or own.origin is None:
            continue
        if Path(own.origin).resolve() != Path(loaded).resolve():
            raise UsageError(
                f"{spec.job_id}: its module {module} is {own.origin}, and this program has imported"
                f" {loaded} under that name; load the job in a program that has not"
            )
