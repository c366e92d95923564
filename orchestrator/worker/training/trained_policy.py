"""A job's trained policy, for ``play`` and for scripts: the finished one, or that of a
checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.errors import UsageError
from orchestrator.core.feature import named_modules
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import alternatives, joined
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


class PolicyError(UsageError):
    """There is no policy as it was asked for; the message says what to change or wait for."""


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
        """As it was saved. :raises PolicyError: it is damaged or cannot be loaded."""
        from orchestrator.worker.training import checkpoint
        from orchestrator.worker.training.sealed_files import DamagedError

        try:
            return checkpoint.load(self.content)
        except DamagedError as error:
            raise PolicyError(f"{self.path} is damaged or not a checkpoint: {error}") from error
        except Exception as error:
            raise PolicyError(
                f"{self.path} cannot be loaded: {type(error).__name__}: {error}"
            ) from error


def read_checkpoint(paths: JobPaths, asked: str | None) -> Checkpoint | None:
    """The checkpoint that was asked for: its env_steps, :data:`LATEST` or a file; None for the
    finished policy.

    :raises PolicyError: there is no such policy; the message lists the checkpoints.
    """
    steps = paths.checkpoints_by_steps()
    existing = ", ".join(map(str, steps)) or "none so far"
    if asked is None:
        if paths.model.exists():
            return None
        lacking = f"{paths.root.name} has no model.zip, which is written when the job succeeds"
        if not steps:
            raise PolicyError(f"{lacking}, and no checkpoint so far; `status` shows how far it is")
        raise PolicyError(
            f"{lacking}; --checkpoint {LATEST} takes the latest of its checkpoints"
            f" (env_steps: {existing})"
        )
    if asked == LATEST or asked.isdecimal():
        env_steps = max(steps, default=-1) if asked == LATEST else int(asked)
        if env_steps not in steps:
            at = f" at {env_steps} env_steps" if steps else ""
            raise PolicyError(
                f"{paths.root.name} has no checkpoint{at}; existing checkpoints: {existing}"
            )
        path = steps[env_steps]
    else:
        path = Path(asked)
    try:
        with open_regular(path) as file:
            return Checkpoint(path, file.read())
    except OSError as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        expected = f"expected a file, {LATEST} or the env_steps of one of: {existing}"
        raise PolicyError(f"checkpoint {asked}: {why}; {expected}") from None


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
    :raises PolicyError: as :func:`load_model` and :func:`normalized_env`.
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
    """A policy from a file that a feature reads.

    :raises UsageError: no feature reads files of this name, or the file is no policy.
    """
    readers = named_modules("policy_readers")
    if path.suffix in readers:
        policy: ReadPolicy = importlib.import_module(readers[path.suffix]).read(path)
        return policy
    if not readers:
        raise PolicyError(f"{path}: no installed feature reads policies from files")
    raise PolicyError(f"{path}: expected a name that ends in {alternatives(readers)}")


def exported_policy(exported: ReadPolicy, venv: VecEnv) -> Policy:
    """A policy that was read from a file, in ``venv`` without normalisation.

    Privileged values, which the critic alone sees, are no observations of it.

    :raises PolicyError: it was exported from a job with other observations or actions.
    """
    from orchestrator.worker.training.asymmetric_critic import privileged_values

    hidden = privileged_values(venv)
    entries: Mapping[str, Any] = getattr(venv.observation_space, "spaces", {})
    parts = list(entries.values()) or [venv.observation_space]
    observations = sum(int(np.prod(part.shape or ())) for part in parts) - hidden
    actions = int(np.prod(venv.action_space.shape or ()))
    own = (exported.observations, set(exported.inputs), exported.actions)
    if own != (observations, set(entries), actions):
        of_policy = _interface_text(exported.observations, exported.inputs, exported.actions)
        of_job = _interface_text(observations, list(entries), actions)
        raise PolicyError(
            f"the exported policy has {of_policy}, and this job {of_job}; name a file that was exported from it"
        )

    def act(observation: Any) -> tuple[Any, bool]:
        if observation is None:
            return venv.reset(), False
        seen = observation[:, :-hidden] if hidden else observation
        observation, _, dones, _ = venv.step(exported(seen)["action"])
        return observation, bool(dones[0])

    return act


def _interface_text(observations: int, inputs: Sequence[str], actions: int) -> str:
    within = f" in {joined(inputs)}" if inputs else ""
    return f"{observations} observations{within} and {actions} actions"


def load_model(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None
) -> Model:
    """The policy as a model of stock Stable-Baselines3 on the CPU, without an environment of its
    own.

    :param venv: an environment of the job; not kept.
    :raises PolicyError: the file is damaged, or the checkpoint is of another job.
    """
    from orchestrator.worker.training import algorithms

    # A model must not allocate gigabytes for a replay buffer that it does not use.
    is_off_policy = issubclass(algorithms.class_of(spec.algo), algorithms.OffPolicy)
    small_buffer = {"buffer_size": 1} if is_off_policy else {}
    if trained is None:
        return _load_finished(spec, paths.model, small_buffer)
    return _load_checkpoint(spec, trained, venv, small_buffer)


def _load_finished(spec: WorkerSpec, path: Path, small_buffer: Mapping[str, int]) -> Model:
    from orchestrator.worker.training import algorithms

    kind = algorithms.class_of(spec.algo)
    try:
        return kind.load(path, device="cpu", custom_objects=dict(small_buffer))
    except Exception as error:
        raise PolicyError(f"{path} cannot be loaded: {failures.describe(error)}") from error


def _load_checkpoint(
    spec: WorkerSpec, trained: Checkpoint, venv: VecEnv, small_buffer: Mapping[str, int]
) -> Model:
    from orchestrator.worker.training import learners

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
        raise PolicyError(
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

    :raises PolicyError: the statistics are missing or damaged.
    """
    from stable_baselines3.common.vec_env import VecNormalize

    from orchestrator.worker.envs import env_factory

    if not spec.normalize:
        return venv
    if trained is None:
        if not paths.vecnormalize.exists():
            text = "the policy cannot be used without its normalisation statistics"
            raise PolicyError(f"{paths.vecnormalize} is missing: {text}")
        try:
            wrapped = VecNormalize.load(str(paths.vecnormalize), venv)
        except Exception as error:
            raise PolicyError(
                f"{paths.vecnormalize} cannot be loaded: {failures.describe(error)}"
            ) from error
    else:
        wrapped = env_factory.normalized_env(spec, venv)
        statistics = trained.state["normalization"] or {}
        if "obs_rms" in statistics:
            wrapped.obs_rms = statistics["obs_rms"]
    wrapped.training = False
    wrapped.norm_reward = False
    return wrapped
