"""``orchestrator.load`` and ``orchestrator.make_env``: a job's trained policy and environments, in
a script's process.

Environments are made by :mod:`orchestrator.worker.envs.env_factory`, as for training and
evaluation, from what the job directory holds alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import gymnasium
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from orchestrator.core.errors import (
    AlteredRobotWarning,
    OrchestratorError,
    UnfinishedPolicyWarning,
    UsageError,
)
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.job_reader import outcome_sentence, read_job
from orchestrator.core.paths import JobPaths, absolute
from orchestrator.core.robot_hash import altered_since_training
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import another_robot, env_factory
from orchestrator.worker.policies.normalized_env import NormalizedEnv
from orchestrator.worker.policies.rendered_vec_env import RenderedVecEnv
from orchestrator.worker.policies.seeded_env import SeededEnv
from orchestrator.worker.policies.task_env import TaskEnv
from orchestrator.worker.rendering import scenes
from orchestrator.worker.rendering.live_view import check_render_mode
from orchestrator.worker.runtime import failures
from orchestrator.worker.training import evaluation, trained_policy, training_state
from orchestrator.worker.training.trained_policy import LATEST, Checkpoint, PolicyError

if TYPE_CHECKING:
    from orchestrator.worker.training.algorithms import Model

StrPath = str | os.PathLike[str]
SingleEnv = gymnasium.Env[Any, Any]


@overload
def load(
    job_dir: StrPath,
    *,
    checkpoint: int | StrPath | None = None,
    n_envs: int = 1,
    render_mode: str | None = None,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> tuple[Model, VecEnv]: ...
@overload
def load(
    job_dir: StrPath,
    *,
    checkpoint: int | StrPath | None = None,
    n_envs: None,
    render_mode: str | None = None,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> tuple[Model, SingleEnv]: ...
def load(
    job_dir: StrPath,
    *,
    checkpoint: int | StrPath | None = None,
    n_envs: int | None = 1,
    render_mode: str | None = None,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> tuple[Model, VecEnv | SingleEnv]:
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
    :param render_mode: ``"human"``, ``"rgb_array"`` or None. In a window, a ``VecEnv`` shows its
        first environment.
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
    trained = _checkpoint(paths, spec, None if checkpoint is None else str(checkpoint))
    if seed is None:
        seed = evaluation.environment_seed(spec)
    _refuse_modules_of_others(spec)
    with _importing_from(spec.search_path):
        spec = _with_robot(spec, paths, xml, nominal=not randomize)
        venv = _environments(paths, spec, n_envs, render_mode, seed, nominal=not randomize)
        generators = training_state.generators(torch.device("cpu"))
        try:
            with _explaining(spec, _cannot_be_loaded(paths, trained)):
                model = trained_policy.load_model(spec, paths, venv, trained)
        finally:  # making a model seeds them, and its environments
            training_state.restore_generators(generators)
            venv.seed(seed)
        env = _normalized_env(spec, paths, venv, trained, single=n_envs is None)
    if checkpoint is None and model.num_timesteps < spec.total_timesteps:
        done = f"{model.num_timesteps:,} of {spec.total_timesteps:,} env_steps"
        message = f"{spec.job_id}: the policy was trained for {done}. {outcome_sentence(paths)}"
        warnings.warn(message, UnfinishedPolicyWarning, stacklevel=2)
    return model, env


@overload
def make_env(
    job_dir: StrPath,
    n_envs: int = 1,
    normalize: bool = True,
    render_mode: str | None = None,
    *,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> VecEnv: ...
@overload
def make_env(
    job_dir: StrPath,
    n_envs: None,
    normalize: bool = True,
    render_mode: str | None = None,
    *,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> SingleEnv: ...
def make_env(
    job_dir: StrPath,
    n_envs: int | None = 1,
    normalize: bool = True,
    render_mode: str | None = None,
    *,
    seed: int | None = None,
    randomize: bool = True,
    xml: StrPath | None = None,
) -> VecEnv | SingleEnv:
    """The environments of a job as :func:`load` gives them, without its policy.

    :param normalize: whether observations are normalised, where the job normalises, with the
        statistics of the finished policy, or of the latest checkpoint with an
        :class:`UnfinishedPolicyWarning`. Without it, a job needs no policy.
    :raises UsageError: as :func:`load`.
    """
    paths, spec = _job(job_dir)
    if not normalize:
        spec = dataclasses.replace(spec, normalize=False)
    trained = _checkpoint(paths, spec, None) if spec.normalize else None
    if seed is None:
        seed = evaluation.environment_seed(spec)
    _refuse_modules_of_others(spec)
    with _importing_from(spec.search_path):
        spec = _with_robot(spec, paths, xml, nominal=not randomize)
        venv = _environments(paths, spec, n_envs, render_mode, seed, nominal=not randomize)
        venv.seed(seed)
        env = _normalized_env(spec, paths, venv, trained, single=n_envs is None)
    if trained is not None:
        at = f"as at {trained.label} env_steps"
        message = f"{spec.job_id}: observations are normalised {at}. {outcome_sentence(paths)}"
        warnings.warn(message, UnfinishedPolicyWarning, stacklevel=2)
    return env


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
        altered = f"{paths.root}: nobody can tell whether its robot was altered: {error}"
    if altered is not None:
        warnings.warn(altered, AlteredRobotWarning, stacklevel=3)
    return paths, spec


def _with_robot(
    spec: WorkerSpec, paths: JobPaths, xml: StrPath | None, *, nominal: bool
) -> WorkerSpec:
    if xml is None:
        return spec
    with _explaining(spec, f"its environment cannot be made with {xml}"):
        return another_robot.with_robot(spec, paths.root, absolute(xml), nominal=nominal)


def _checkpoint(paths: JobPaths, spec: WorkerSpec, asked: str | None) -> Checkpoint | None:
    """The checkpoint to load; None for the finished policy. :raises PolicyError: there is none."""
    if asked is None and not paths.model.exists():
        if not paths.checkpoints_by_steps():
            text = f"{spec.job_id} has neither a policy nor a checkpoint. {outcome_sentence(paths)}"
            raise PolicyError(f"{paths.root}: {text}. `status` shows its state, `logs` its output")
        asked = LATEST
    try:
        return trained_policy.read_checkpoint(paths, asked)
    except OSError as error:
        raise PolicyError(f"checkpoint {asked}: {error.strerror or error}") from error


def _environments(
    paths: JobPaths,
    spec: WorkerSpec,
    n_envs: int | None,
    render_mode: str | None,
    seed: int,
    *,
    nominal: bool,
) -> VecEnv:
    """The job's environments without normalisation.

    :param n_envs: None for one ``gymnasium.Env``, which is then the only one in a ``DummyVecEnv``.
    :raises UsageError: they cannot be made.
    """
    is_number = isinstance(n_envs, int) and not isinstance(n_envs, bool)
    if n_envs is not None and not (is_number and n_envs >= 1):
        raise UsageError(
            f"n_envs = {n_envs!r}: expected a whole number of at least 1, or None for one gymnasium.Env"
        )
    with _explaining(spec, "its environment cannot be made here"):
        return _made_environments(paths, spec, n_envs, render_mode, seed, nominal=nominal)


def _made_environments(
    paths: JobPaths,
    spec: WorkerSpec,
    n_envs: int | None,
    render_mode: str | None,
    seed: int,
    *,
    nominal: bool,
) -> VecEnv:
    """As :func:`_environments`, with whatever the job's environment raises."""
    if not env_factory.is_batched(spec):
        spec = _with_render_mode(spec, render_mode)
        if n_envs is None:
            [make] = env_factory.makers(spec, paths.root, [0], seed)
            return DummyVecEnv([lambda: SeededEnv(make(), seed)])
        return env_factory.make(spec, paths.root, n_envs=n_envs, seed=seed)
    xml = Path(str(env_factory.robot_path(spec, paths.root)))
    check_render_mode(render_mode)
    if n_envs is None:
        env = TaskEnv(
            xml,
            task=str(spec.task),
            render_mode=render_mode,
            task_options=spec.task_options,
            seed=seed,
            on_divergence=spec.on_divergence,
            randomize=spec.randomize,
            asymmetric=spec.asymmetric,
            nominal=nominal,
        )
        return DummyVecEnv([lambda: Monitor(env)])
    venv = env_factory.make(
        spec, paths.root, n_envs=n_envs, seed=seed, measuring=True, nominal=nominal
    )
    if render_mode is None:
        return venv
    return RenderedVecEnv(venv, venv.simulation, xml, render_mode)  # type: ignore[attr-defined]


def _with_render_mode(spec: WorkerSpec, render_mode: str | None) -> WorkerSpec:
    """Environments that are no built-in tasks render themselves, if they take an argument
    ``render_mode``.
    """
    if render_mode is None:
        return spec
    if spec.entry_point is not None and not scenes.takes_render_mode(spec.entry_point):
        advice = "let it take one and pass it to its environment"
        raise UsageError(f"{spec.entry_point} takes no argument render_mode; {advice}")
    return dataclasses.replace(spec, env_kwargs={**spec.env_kwargs, "render_mode": render_mode})


def _normalized_env(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None, *, single: bool
) -> VecEnv | SingleEnv:
    """What the caller gets: ``venv``, or the single environment in it."""
    with _explaining(spec, _cannot_be_loaded(paths, trained)):
        normalized = trained_policy.normalized_env(spec, paths, venv, trained)
    if not single:
        return normalized
    [env] = venv.envs  # type: ignore[attr-defined]
    return NormalizedEnv(env, normalized) if isinstance(normalized, VecNormalize) else env


@contextlib.contextmanager
def _explaining(spec: WorkerSpec, problem: str) -> Iterator[None]:
    """Whatever the block raises becomes an error that says ``problem``."""
    try:
        yield
    except OrchestratorError:
        raise
    except Exception as error:
        folder = spec.search_path
        gone = folder is not None and not Path(folder).is_dir()
        hint = f"; the folder of the job's own modules, {folder}, is missing" if gone else ""
        raise UsageError(f"{spec.job_id}: {problem}: {failures.describe(error)}{hint}") from error


def _cannot_be_loaded(paths: JobPaths, trained: Checkpoint | None) -> str:
    file = paths.model if trained is None else trained.path
    return f"its policy, {file}, cannot be loaded"


def _refuse_modules_of_others(spec: WorkerSpec) -> None:
    """:raises UsageError: this process has a module of another folder under the name of one of the
    job's own.
    """
    for name in (spec.task, spec.entry_point, spec.env, spec.algo):
        if spec.search_path is None or name is None or ":" not in name:
            continue
        module = name.partition(":")[0].partition(".")[0]
        loaded = getattr(sys.modules.get(module), "__file__", None)
        folder = Path(spec.search_path)
        own = [folder / f"{module}.py", folder / module / "__init__.py"]
        files = [file.resolve() for file in own if file.is_file()]
        if loaded is None or not files or Path(loaded).resolve() in files:
            continue
        if not _are_equal(Path(loaded), files[0]):
            raise UsageError(
                f"{spec.job_id}: its module {module} is {files[0]}, and this program has imported"
                f" {loaded} under that name; load the job in a program that has not"
            )


def _are_equal(one: Path, other: Path) -> bool:
    """Whether two files have the same content; what cannot be read, as it is gone, is no other's."""
    try:
        return read_regular(one) == read_regular(other)
    except OSError:
        return False


@contextlib.contextmanager
def _importing_from(folder: str | None) -> Iterator[None]:
    """Import modules from the job's folder first; afterwards, for what is imported late, last."""
    if folder is None:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)  # the first
        if folder not in sys.path:
            sys.path.append(folder)
