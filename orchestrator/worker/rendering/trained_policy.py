"""The policy that ``play`` shows: a job's finished one, or that of a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import OFF_POLICY, WorkerSpec

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from orchestrator.worker.training.algorithms import Model

LATEST = "latest"
"""Value of ``--checkpoint`` for the checkpoint with the most env_steps."""
_POLICY_HYPERPARAMETERS = ("use_sde", "sde_sample_freq", "action_noise")
"""The hyperparameters that policy and exploration are built from."""
Policy = Callable[[Any], tuple[Any, bool]]
"""Takes an observation (None to start), steps, and returns the next one and whether the episode has ended."""


class Unplayable(Exception):
    """There is nothing to play as the command asks; the message says what to change or wait for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint file, read at once because a job in training removes its older ones."""

    path: Path
    content: bytes

    @property
    def label(self) -> str:
        """``checkpoint-000000051200.pt`` → ``51200``; other names as they are."""
        name = self.path.stem.removeprefix("checkpoint-")
        return str(int(name)) if name.isdecimal() else name


def read_checkpoint(paths: JobPaths, asked: str | None) -> Checkpoint | None:
    """The checkpoint that ``--checkpoint`` names; None for the finished policy.

    :raises Unplayable: there is no such policy; the message lists the checkpoints.
    """
    steps = {int(path.stem.rpartition("-")[2]): path for path in sorted(paths.checkpoints.glob("checkpoint-*.pt"))}
    existing = ", ".join(map(str, steps)) or "none so far"
    if asked is None:
        if not paths.model.exists():
            raise Unplayable(
                f"{paths.root.name} has no model.zip, which is written when the job succeeds; --checkpoint {LATEST} "
                f"plays the latest of its checkpoints (env_steps: {existing})"
            )
        return None
    if asked == LATEST or asked.isdecimal():
        env_steps = max(steps, default=-1) if asked == LATEST else int(asked)
        if env_steps not in steps:
            at = f" at {env_steps} env_steps" if steps else ""
            raise Unplayable(f"{paths.root.name} has no checkpoint{at}; existing checkpoints: {existing}")
        path = steps[env_steps]
    else:
        path = Path(asked)
    try:
        return Checkpoint(path, path.read_bytes())
    except (FileNotFoundError, IsADirectoryError):
        raise Unplayable(
            f"--checkpoint {asked}: no such file; expected a file, {LATEST} or the env_steps of one of: {existing}"
        ) from None


def load_policy(
    spec: WorkerSpec, paths: JobPaths, venv: VecEnv, trained: Checkpoint | None, *, deterministic: bool
) -> Policy:
    """The policy in ``venv``.

    :raises Unplayable: the checkpoint is damaged or of another job, or the normalisation statistics are missing.
    """
    from stable_baselines3.common.vec_env import VecNormalize

    from orchestrator.worker.runtime import sb3_internals
    from orchestrator.worker.training import algorithms

    # A model must not allocate gigabytes for a replay buffer that it does not use.
    small_buffer = {"buffer_size": 1} if spec.algo in OFF_POLICY else {}
    if trained is None:
        kind = algorithms.CLASSES[spec.algo]
        model: Model = kind.load(paths.model, device="cpu", custom_objects=small_buffer)
        normalized = _with_saved_statistics(spec, paths, venv)
    else:
        model, normalized = _from_checkpoint(spec, venv, trained, small_buffer)
    if isinstance(normalized, VecNormalize):
        normalized.training = normalized.norm_reward = False
    wrapped: Any = sb3_internals.wrap_env(model, normalized)

    def act(observation: Any) -> tuple[Any, bool]:
        if observation is None:
            return wrapped.reset(), False
        actions, _ = model.predict(observation, deterministic=deterministic)
        if not deterministic:
            actions = algorithms.add_action_noise(model, actions)
        observation, _, dones, _ = wrapped.step(actions)
        return observation, bool(dones[0])

    return act


def _with_saved_statistics(spec: WorkerSpec, paths: JobPaths, venv: VecEnv) -> VecEnv:
    """``venv`` with observations normalised as at the end of training."""
    from stable_baselines3.common.vec_env import VecNormalize

    if not spec.normalize:
        return venv
    if not paths.vecnormalize.exists():
        text = "the policy cannot be played without its normalisation statistics"
        raise Unplayable(f"{paths.vecnormalize} is missing: {text}")
    return VecNormalize.load(str(paths.vecnormalize), venv)


def _from_checkpoint(
    spec: WorkerSpec, venv: VecEnv, trained: Checkpoint, small_buffer: dict[str, Any]
) -> tuple[Model, VecEnv]:
    """The policy of a checkpoint, and ``venv`` with observations normalised as at that time."""
    from orchestrator.worker.envs import env_factory
    from orchestrator.worker.training import checkpoint, learners
    from orchestrator.worker.training.replay import DamagedError

    try:
        state = checkpoint.load(trained.content)
    except DamagedError as error:
        raise Unplayable(f"{trained.path} is damaged or not a checkpoint: {error}") from error
    except Exception as error:
        raise Unplayable(f"{trained.path} cannot be loaded: {type(error).__name__}: {error}") from error
    needed = {name: value for name, value in spec.hyperparameters.items() if name in _POLICY_HYPERPARAMETERS}
    model = learners.build(dataclasses.replace(spec, hyperparameters=needed | small_buffer), venv).model
    try:
        model.policy.load_state_dict(state["policy"])
    except (RuntimeError, KeyError):
        raise Unplayable(
            f"{trained.path} belongs to another job: its network has other shapes than that of {spec.job_id}"
        ) from None
    if not spec.normalize:
        return model, venv
    normalized = env_factory.normalized(spec, venv)
    if "obs_rms" in (statistics := state["normalization"] or {}):
        normalized.obs_rms = statistics["obs_rms"]
    return model, normalized
