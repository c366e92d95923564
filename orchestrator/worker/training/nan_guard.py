"""Detection of non-finite numbers, once an iteration, before they reach a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from orchestrator.core.errors import OrchestratorError
from orchestrator.worker.runtime.failures import Diverged
from orchestrator.worker.runtime.sb3_internals import LAST_OBS
from orchestrator.worker.training import replay
from orchestrator.worker.training.algorithms import Model, OffPolicy, OnPolicy
from orchestrator.worker.training.fast.update import NonFiniteGradient

LOOK_BACK = 1000
"""Rows of a replay buffer that are searched for the reason of an error."""


class NonFinite(Exception):
    """A check failed; the message names what is not finite. :func:`explaining_divergence` says
    when.
    """


def check_rollout(model: Model, steps: int) -> None:
    """Check the rollout just collected, ``steps`` steps of each environment, before it is learnt
    from.

    :raises NonFinite: names the environment where it begins.
    """
    problem = _problem_in(_rollout(model, steps))
    if problem is not None:
        raise NonFinite(problem)


def check_losses(model: Model) -> None:
    """Check the losses of an update. :raises NonFinite:"""
    for name, value in model.logger.name_to_value.items():
        is_loss = name.startswith("train/") and name.endswith(("loss", "ent_coef"))
        if is_loss and not np.isfinite(value):
            raise NonFinite(f"{name} is not finite: {value}")


def check_parameters(model: Model) -> None:
    """Check every parameter; a non-finite gradient shows there. :raises NonFinite:"""
    problem = _parameter_problem(model)
    if problem is not None:
        raise NonFinite(problem)


def observation_problem(observations: Any) -> str | None:
    """Name what is not finite in observations ``(n_envs, …)``, or those of each key, and the
    environment. Return None if all is.
    """
    return _problem_in(_as_one_step(observations))


@contextmanager
def explaining_divergence(model: Model, iteration: int) -> Iterator[None]:
    """Turn failed checks, and errors while numbers are not finite, into :class:`Diverged`.

    Physics that diverges because the policy's actions are not finite is the policy's fault.
    """
    try:
        yield
    except Exception as error:  # of torch, numpy, the environment or the physics
        if isinstance(error, NonFinite | NonFiniteGradient):
            problem: str | None = str(error)
        else:
            problem = _parameter_problem(model)
            if not isinstance(error, OrchestratorError | Diverged):  # these say what is wrong
                problem = (
                    problem
                    or _problem_in(_latest_observations(model))
                    or _problem_in(_rollout(model, LOOK_BACK))
                    or _exploration_problem(model)
                )
        if problem is None:
            raise
        raise Diverged(
            f"iteration {iteration} (env_steps {model.num_timesteps}): {problem}"
        ) from error


def _parameter_problem(model: Model) -> str | None:
    for name, parameter in model.policy.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            return f"parameter {name} of the policy is not finite"
    return None


def _latest_observations(model: Model) -> list[tuple[str, Any]]:
    """Names and arrays ``(1, n_envs, …)``, as the environments returned them: one that is not
    finite spoils the normalised ones of all.
    """
    normalization = model.get_vec_normalize_env()
    original = None if normalization is None else getattr(normalization, "old_obs", None)
    latest = vars(model)[LAST_OBS] if original is None else original
    return _as_one_step(latest)


def _rollout(model: Model, steps: int) -> list[tuple[str, Any]]:
    """Names and arrays ``(steps, n_envs, …)`` of the last rollout."""
    if isinstance(model, OnPolicy):
        buffer = model.rollout_buffer
        return [
            ("rewards", buffer.rewards),
            *_by_name(buffer.observations),
            ("values", buffer.values),
            ("returns", buffer.returns),
        ]
    if isinstance(model, OffPolicy) and replay.is_known(model.replay_buffer):
        assert model.replay_buffer is not None
        return replay.latest(model.replay_buffer, min(steps, model.replay_buffer.size()))
    return []


def _by_name(observations: Any) -> list[tuple[str, Any]]:
    """The arrays of observations, each with its name."""
    is_dict = isinstance(observations, dict)
    return list(observations.items()) if is_dict else [("observations", observations)]


def _as_one_step(observations: Any) -> list[tuple[str, Any]]:
    """Names and arrays ``(1, n_envs, …)`` of the observations that there are."""
    return [(name, array[None]) for name, array in _by_name(observations) if array is not None]


def _problem_in(arrays: list[tuple[str, Any]]) -> str | None:
    """Name the first of ``arrays``, each ``(steps, n_envs, …)``, that is not finite, and the
    environment, unless all of several are at fault, as normalisation makes it.
    """
    for name, array in arrays:
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            place = tuple(np.argwhere(~np.isfinite(array))[0])
            step, env = place[:2]
            n_envs = len(array[step])
            is_bad = ~np.isfinite(array[step].reshape(n_envs, -1)).all(axis=1)
            where = "" if is_bad.all() and n_envs > 1 else f" in environment {env}"
            return f"{name} are not finite: {array[place]}{where}"
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
