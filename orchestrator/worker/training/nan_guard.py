"""Noticing numbers that are not finite, once an iteration, before they reach a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.runtime.outcome import Diverged
from orchestrator.worker.training import replay
from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.fast.update import NonFiniteGradient

LOSSES = (
    *("train/loss", "train/policy_gradient_loss", "train/value_loss", "train/entropy_loss"),
    *("train/policy_loss", "train/critic_loss", "train/actor_loss", "train/ent_coef_loss", "train/ent_coef"),
)
LOOK_BACK = 1000
"""Rows of a replay buffer that are looked through for the reason of an error."""


def check_rollout(model: Model, iteration: int, steps: int) -> None:
    """Look through the rollout just collected, of ``steps`` steps of each environment, before it is learnt from.

    :raises Diverged: naming what is not finite, and the step and environment where it begins.
    """
    problem = _rollout_problem(model, steps)
    if problem:
        raise _diverged(model, iteration, problem)


def check_losses(model: Model, iteration: int) -> None:
    """Look at the losses of an update. :raises Diverged: naming the one that is not finite."""
    problem = _loss_problem(model)
    if problem:
        raise _diverged(model, iteration, problem)


def check_parameters(model: Model, iteration: int) -> None:
    """Look at every parameter; a non-finite gradient shows there. :raises Diverged: naming what is not finite."""
    problem = _parameter_problem(model)
    if problem:
        raise _diverged(model, iteration, problem)


@contextmanager
def blaming(model: Model, iteration: int) -> Iterator[None]:
    """Where torch or numpy refuse a number that is not finite, say that this is what happened.

    (torch's distributions raise ``ValueError`` about their arguments then, its sampling ``RuntimeError``. Physics
    diverges when the policy's actions are no numbers, which is then the policy's fault.)
    """
    try:
        yield
    except NonFiniteGradient as error:
        raise _diverged(model, iteration, str(error)) from error
    except (ValueError, RuntimeError, FloatingPointError, AssertionError) as error:
        problem = (
            _parameter_problem(model)
            or _observation_problem(model)
            or _rollout_problem(model, LOOK_BACK)
            or _exploration_problem(model)
        )
        if problem is None:
            raise
        raise _diverged(model, iteration, problem) from error
    except OrchestratorError as error:
        problem = _parameter_problem(model)
        if problem is None:
            raise
        raise _diverged(model, iteration, problem) from error


def _diverged(model: Model, iteration: int, problem: str) -> Diverged:
    return Diverged(f"iteration {iteration} (env_steps {model.num_timesteps}): {problem}")


def _rollout_problem(model: Model, steps: int) -> str | None:
    for name, array in _collected(model, steps):
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            place = np.argwhere(~np.isfinite(array))[0]
            return f"{name} are not finite: {array[tuple(place)]} at step {place[0]}{_environment(array[place[0]])}"
    return None


def _collected(model: Model, steps: int) -> list[tuple[str, NDArray[np.generic]]]:
    """What the last rollout brought, each array ``(steps, n_envs, …)``, by name."""
    if isinstance(model, OffPolicy):
        assert model.replay_buffer is not None
        return replay.latest(model.replay_buffer, min(steps, model.replay_buffer.size()))
    buffer = model.rollout_buffer
    observations = buffer.observations
    parts = observations if isinstance(observations, dict) else {"observations": observations}
    return [("rewards", buffer.rewards), *parts.items(), ("values", buffer.values), ("returns", buffer.returns)]


def _observation_problem(model: Model) -> str | None:
    normalization = model.get_vec_normalize_env()
    # As the environments gave them: one that is not finite spoils the normalised ones of all.
    given = None if normalization is None else getattr(normalization, "old_obs", None)
    latest = model._last_obs if given is None else given
    arrays = latest if isinstance(latest, dict) else {"observations": latest}
    for name, array in arrays.items():
        if array is not None and np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            return f"{name} are not finite{_environment(array)}"
    return None


def _environment(row: np.ndarray) -> str:
    """Which environment it is in ``(n_envs, …)``; nothing where it is in all, as normalisation spreads it."""
    bad = ~np.isfinite(row.reshape(len(row), -1)).all(axis=1)
    return f" in environment {int(bad.argmax())}" if bad.sum() == 1 or not bad.all() else ""


def _loss_problem(model: Model) -> str | None:
    for name in LOSSES:
        value = model.logger.name_to_value.get(name)
        if value is not None and not np.isfinite(value):
            return f"{name} is not finite: {value}"
    return None


def _parameter_problem(model: Model) -> str | None:
    with torch.no_grad():
        for name, parameter in model.policy.named_parameters():
            if not torch.isfinite(parameter).all():
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
        f"the standard deviation of the policy's actions left the numbers: its logarithm lies between "
        f"{log_std.min():.3g} and {log_std.max():.3g}; a smaller learning_rate or max_grad_norm usually helps"
    )
