"""A job's trained policy: the finished one, or that of a checkpoint; and policies from files that
features read.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.errors import UsageError
from orchestrator.core.feature import named_modules
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.job_reader import outcome_sentence
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec, is_algorithm_class
from orchestrator.worker.runtime import failures

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from orchestrator.worker.training.algorithms import Model

LATEST = "latest"
"""Names the checkpoint with the most env_steps."""
Policy = Callable[[Any], tuple[Any, bool]]
"""Takes an observation (None to start), steps, and returns the next one and whether the episode has
ended."""


Observation: TypeAlias = NDArray[Any] | Mapping[str, NDArray[Any]]
"""``(batch, n)`` as an environment gives it; of a ``Dict``, each of its entries."""


class ReadPolicy(Protocol):
    """A policy that a feature has read from a file."""

    observations: int
    """How many numbers, of all entries of a ``Dict`` together."""
    inputs: Sequence[str]
    """Entries of a ``Dict`` observation; empty for a vector."""
    actions: int

    def __call__(self, observation: Observation, /) -> Mapping[str, NDArray[np.float32]]:
        """``action`` and, where it is known, ``ctrl``, ``(batch, actions)``, for observations as the
        environment gives them.
        """


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint file, read at once because a job in training removes its older ones."""

    path: Path
    content: bytes

    @property
    def label(self) -> str:
        """``checkpoint-000000051200.pt`` → ``51200``; other names as they are."""
        name = self.path.stem.removeprefix("checkpoint-")
        return str(int(name)) if name.isdecimal() else name

    @functools.cached_property
    def state(self) -> dict[str, Any]:
        """As it was saved. :raises UsageError: it is damaged, or no checkpoint."""
        from orchestrator.worker.training import training_state

        try:
            return training_state.load(self.content)
        except Exception as error:
            raise UsageError(
                f"{self.path}: cannot be loaded as a checkpoint: {failures.describe(error)}"
            ) from error


def newest_policy(paths: JobPaths, spec: WorkerSpec) -> Checkpoint | None:
    """Read the latest checkpoint of a job; None stands for its finished policy.

    :raises UsageError: it has neither.
    """
    steps = paths.checkpoints_by_steps()
    is_trained_further = max(steps, default=spec.total_timesteps) < spec.total_timesteps
    if paths.model.exists() and not is_trained_further:
        return None
    if not steps:
        raise UsageError(
            f"{paths.root}: it has neither a policy nor a checkpoint. {outcome_sentence(paths)}. "
            "`status` shows its state, `logs` its output"
        )
    return read_checkpoint(paths, LATEST)


def read_checkpoint(paths: JobPaths, asked: str | None) -> Checkpoint | None:
    """Read the checkpoint that was asked for: its env_steps, :data:`LATEST` or a file. None stands
    for the finished policy.

    :raises UsageError: there is no such policy; the message lists the checkpoints.
    """
    if asked is None and paths.model.exists():
        return None
    steps = paths.checkpoints_by_steps()
    existing = ", ".join(map(str, steps)) or "none so far"
    if asked is None:
        raise UsageError(
            f"{paths.root.name} has no model.zip, which is written when the job succeeds; "
            f"--checkpoint names one of its checkpoints ({existing})"
        )
    path = Path(asked)
    if asked == LATEST and steps:
        path = steps[max(steps)]
    elif asked.isdecimal() and int(asked) in steps:
        path = steps[int(asked)]
    try:
        with open_regular(path) as file:
            return Checkpoint(path, file.read())
    except OSError as error:
        raise UsageError(
            f"{paths.root.name} has no checkpoint {asked}; expected a file, {LATEST} or env_steps; "
            f"existing checkpoints: {existing}"
        ) from error


def load_policy(
    spec: WorkerSpec,
    paths: JobPaths,
    venv: VecEnv,
    trained: Checkpoint | None,
    *,
    seed: int,
) -> Policy:
    """The policy in ``venv``.

    :param seed: of its episodes.
    :raises UsageError: as :func:`load_model` and :func:`normalized_env`.
    """
    from orchestrator.worker.runtime import sb3_internals
    from orchestrator.worker.training.acting import ActingPolicy

    model = load_model(spec, paths, venv, trained)
    venv.seed(seed)  # making a model seeds it with the seed of the job
    wrapped: Any = sb3_internals.wrap_env(model, normalized_env(spec, paths, venv, trained))
    policy = ActingPolicy(model, venv.num_envs)

    def act(observation: Any) -> tuple[Any, bool]:
        if observation is None:
            policy.begin()
            return wrapped.reset(), False
        observation, _, dones, _ = wrapped.step(policy.act(observation))
        policy.see_ends(dones)
        return observation, bool(dones[0])

    return act


def read_policy(path: Path) -> ReadPolicy:
    """Read a policy from a file that a feature reads.

    :raises UsageError: no feature reads files of this name, or the file is no policy.
    """
    readers = named_modules("policy_readers")
    if path.suffix not in readers:
        raise UsageError(f"{path}: expected a name that ends in {', '.join(readers)}")
    policy: ReadPolicy = importlib.import_module(readers[path.suffix]).read(path)
    return policy


def exported_policy(exported: ReadPolicy, venv: VecEnv) -> Policy:
    """Return a policy that was read from a file, in ``venv`` without normalisation.

    Privileged values, which the critic alone sees, are no observations of it.

    :raises UsageError: it was exported from a job with other observations or actions.
    """
    from gymnasium.spaces import flatdim

    from orchestrator.worker.training.asymmetric_critic import privileged_values

    hidden = privileged_values(venv)
    inputs = sorted(getattr(venv.observation_space, "spaces", ()))
    observations = flatdim(venv.observation_space) - hidden
    of_job = (observations, inputs, flatdim(venv.action_space))
    if of_job != (exported.observations, sorted(exported.inputs), exported.actions):
        raise UsageError(
            f"the exported policy has {exported.observations} observations {list(exported.inputs)} and "
            f"{exported.actions} actions, and this job {observations} {inputs} and {of_job[2]}; "
            "name a file that was exported from it"
        )

    def act(observation: Any) -> tuple[Any, bool]:
        if observation is None:
            return venv.reset(), False
        seen = observation[:, :-hidden] if hidden else observation
        observation, _, dones, _ = venv.step(exported(seen)["action"])
        return observation, bool(dones[0])

    return act


def load_model(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None
) -> Model:
    """The policy as a model of stock Stable-Baselines3 on the CPU, without an environment of its
    own.

    :param venv: an environment of the job; not kept.
    :raises UsageError: the file is damaged, or the checkpoint is of another job.
    """
    from orchestrator.worker.training import algorithms, learners

    kind = algorithms.class_of(spec.algo)
    # A model must not allocate gigabytes for a replay buffer that it does not use.
    small_buffer = {"buffer_size": 1} if issubclass(kind, algorithms.OffPolicy) else {}
    if trained is None:
        try:
            return kind.load(paths.model, device="cpu", custom_objects=dict(small_buffer))
        except Exception as error:
            raise UsageError(
                f"{paths.model} cannot be loaded: {failures.describe(error)}"
            ) from error
    state = trained.state
    needed = spec.hyperparameters
    if not is_algorithm_class(spec.algo):  # only this one decides how a policy is built
        needed = {name: value for name, value in needed.items() if name == "use_sde"}
    stock = dataclasses.replace(
        spec,
        learner="sb3",
        device="cpu",
        ranks=1,
        n_envs=venv.num_envs,
        hyperparameters={**needed, **small_buffer},
    )
    model = learners.build(stock, venv).model
    try:
        model.policy.load_state_dict(state["policy"])
    except (RuntimeError, KeyError):
        raise UsageError(
            f"{trained.path} belongs to another job: its network has other shapes than that of {spec.job_id}"
        ) from None
    if model.use_sde:
        model.policy.reset_noise(venv.num_envs)  # type: ignore[operator]
    model.num_timesteps = state["env_steps"]
    model.env = None
    return model


def normalized_env(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None
) -> VecEnv:
    """``venv``, where the job normalises with observations as the policy had them; the statistics
    are frozen.

    Rewards are the environment's own.

    :raises UsageError: the statistics are missing or damaged.
    """
    from orchestrator.worker.envs import env_factory

    if not spec.normalize:
        return venv
    statistics = saved_statistics(paths) if trained is None else trained.state["normalization"]
    return env_factory.frozen_normalized_env(spec, venv, statistics)


def saved_statistics(paths: JobPaths) -> dict[str, Any]:
    """The running statistics beside a ``model.zip``: ``obs_rms``, unless observations were not
    normalised, and ``ret_rms``.

    :raises UsageError: they are missing or damaged.
    """
    try:
        saved = vars(pickle.loads(paths.vecnormalize.read_bytes()))
    except Exception as error:
        raise UsageError(
            f"{paths.vecnormalize} cannot be loaded: {failures.describe(error)}"
        ) from error
    return {name: saved[name] for name in ("obs_rms", "ret_rms") if name in saved}
