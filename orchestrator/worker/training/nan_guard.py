"""Detection of non-finite numbers, once an iteration, before they reach a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.runtime.sb3_internals import LAST_OBS
from orchestrator.worker.training import replay
from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.fast.update import NonFiniteGradient

LOSSES = (
    "train/loss",
    "train/policy_gradient_loss",
    "train/value_loss",
    "train/entropy_loss",
    "train/policy_loss",
    "train/critic_loss",
    "train/actor_loss",
    "train/ent_coef_loss",
    "train/ent_coef",
)
"""Logged values that are checked; an algorithm logs some of them."""
LOOK_BACK = 1000
"""Rows of a replay buffer that are searched for the reason of an error."""


class NonFinite(Exception):
    """A check failed; the message names what is not finite. :func:`explaining_divergence` says
    when.
    """


def check_rollout(model: Model, steps: int) -> None:
    """Check the rollout just collected, ``steps`` steps of each environment, before it is learnt
    from.

    :raises NonFinite: names the step and environment where it begins.
    """
    _raise_if(_rollout_problem(model, steps))


def check_losses(model: Model) -> None:
    """Check the losses of an update. :raises NonFinite:"""
    for name in LOSSES:
        value = model.logger.name_to_value.get(name)
        if value is not None and not np.isfinite(value):
            raise NonFinite(f"{name} is not finite: {value}")


def check_parameters(model: Model) -> None:
    """Check every parameter; a non-finite gradient shows there. :raises NonFinite:"""
    _raise_if(_parameter_problem(model))


@contextmanager
def explaining_divergence(model: Model, iteration: int) -> Iterator[None]:
    """Turn failed checks, and errors of torch, numpy or the physics about non-finite numbers, into
    :class:`Diverged`.

    torch's distributions raise ``ValueError`` about their arguments, its sampling ``RuntimeError``.
    Physics that diverges because the policy's actions are not finite is the policy's fault.
    """
    try:
        yield
    except (
        ValueError,
        RuntimeError,
        FloatingPointError,
        AssertionError,
        OrchestratorError,
        NonFinite,
    ) as error:
        problem: str | None = str(error)
        if not isinstance(error, NonFinite | NonFiniteGradient):
            problem = _parameter_problem(model)
            if problem is None and not isinstance(error, OrchestratorError):
                problem = _observation_problem(model) or _rollout_problem(model, LOOK_BACK)
                problem = problem or _exploration_problem(model)
        if problem is None:
            raise
        raise Diverged(
            f"iteration {iteration} (env_steps {model.num_timesteps}): {problem}"
        ) from error


def _raise_if(problem: str | None) -> None:
    if problem is not None:
        raise NonFinite(problem)


def _rollout_problem(model: Model, steps: int) -> str | None:
    for name, array in _rollout_arrays(model, steps):
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            step, *rest = np.argwhere(~np.isfinite(array))[0]
            where = _environment(array[step]) or " in all environments"
            return (
                f"{name} are not finite: {array[step, *rest]} at step {step} of the rollout{where}"
            )
    return None


def _rollout_arrays(model: Model, steps: int) -> list[tuple[str, NDArray[np.generic]]]:
    """The arrays of the last rollout, each ``(steps, n_envs, …)``, by name."""
    if isinstance(model, OffPolicy):
        assert model.replay_buffer is not None
        return replay.latest(model.replay_buffer, min(steps, model.replay_buffer.size()))
    buffer = model.rollout_buffer
    observations = buffer.observations
    parts = observations if isinstance(observations, dict) else {"observations": observations}
    return [
        ("rewards", buffer.rewards),
        *parts.items(),
        ("values", buffer.values),
        ("returns", buffer.returns),
    ]


def _observation_problem(model: Model) -> str | None:
    normalization = model.get_vec_normalize_env()
    # As the environments returned them: one that is not finite spoils the normalised ones of all.
    original = None if normalization is None else getattr(normalization, "old_obs", None)
    latest = vars(model)[LAST_OBS] if original is None else original
    arrays = latest if isinstance(latest, dict) else {"observations": latest}
    for name, array in arrays.items():
        if (
            array is not None
            and np.issubdtype(array.dtype, np.floating)
            and not np.isfinite(array).all()
        ):
            return f"{name} are not finite{_environment(array)}"
    return None


def _environment(row: np.ndarray) -> str:
    """The environment of ``(n_envs, …)`` at fault; nothing where it is all of several, as
    normalisation makes it.
    """
    bad = ~np.isfinite(row.reshape(len(row), -1)).all(axis=1)
    return f" in environment {int(bad.argmax())}" if bad.sum() == 1 or not bad.all() else ""


def _parameter_problem(model: Model) -> str | None:
    for name, parameter in model.policy.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            return f"parameter {name} of the policy is not finite"
    return None


def _exploration_problem(model: Model) -> str | None:
    log_std = getattr(model.policy, "log_std", None)
    if log_std is None:
        return None
    std = log_std.detach().exp()
    if torch.isfinite(std).all() and (std > 0).all():
        return None
    return (
        f"the standard deviation of the policy's actions is not finite or zero: its logarithm lies between "
        f"{log_std.min():.3g} and {log_std.max():.3g}; a smaller learning_rate or max_grad_norm usually helps"
    )
