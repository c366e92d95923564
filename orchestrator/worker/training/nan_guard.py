"""Detection of non-finite numbers, once an iteration, before they reach a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

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

    :raises NonFinite: names the step and environment where it begins.
    """
    _raise_if(_rollout_problem(model, steps))


def check_losses(model: Model) -> None:
    """Check the losses of an update. :raises NonFinite:"""
    for name, value in model.logger.name_to_value.items():
        is_loss = name.startswith("train/") and name.endswith(("loss", "ent_coef"))
        if is_loss and not np.isfinite(value):
            raise NonFinite(f"{name} is not finite: {value}")


def check_parameters(model: Model) -> None:
    """Check every parameter; a non-finite gradient shows there. :raises NonFinite:"""
    _raise_if(_parameter_problem(model))


def _raise_if(problem: str | None) -> None:
    if problem is not None:
        raise NonFinite(problem)


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
        if isinstance(error, NonFinite | NonFiniteGradient):
            problem: str | None = str(error)
        else:
            problem = _parameter_problem(model)
            if not isinstance(error, OrchestratorError):  # physics says itself what is wrong
                problem = (
                    problem
                    or _observation_problem(model)
                    or _rollout_problem(model, LOOK_BACK)
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


def _observation_problem(model: Model) -> str | None:
    normalization = model.get_vec_normalize_env()
    # As the environments returned them: one that is not finite spoils the normalised ones of all.
    original = None if normalization is None else getattr(normalization, "old_obs", None)
    latest = vars(model)[LAST_OBS] if original is None else original
    for name, array in _by_name(latest):
        if array is not None and not _is_finite(array):
            return f"{name} are not finite{_environment(array)}"
    return None


def _rollout_problem(model: Model, steps: int) -> str | None:
    arrays: list[tuple[str, NDArray[Any]]] = []
    if isinstance(model, OnPolicy):
        buffer = model.rollout_buffer
        arrays = [
            ("rewards", buffer.rewards),
            *_by_name(buffer.observations),
            ("values", buffer.values),
            ("returns", buffer.returns),
        ]
    elif isinstance(model, OffPolicy) and replay.is_known(model.replay_buffer):
        assert model.replay_buffer is not None
        arrays = replay.latest(model.replay_buffer, min(steps, model.replay_buffer.size()))
    for name, array in arrays:
        if not _is_finite(array):
            place = tuple(np.argwhere(~np.isfinite(array))[0])
            step = place[0]
            where = _environment(array[step]) or " in all environments"
            return f"{name} are not finite: {array[place]} at step {step} of the rollout{where}"
    return None


def _by_name(observations: Any) -> list[tuple[str, Any]]:
    """The arrays of observations, each with its name."""
    is_dict = isinstance(observations, dict)
    return list(observations.items()) if is_dict else [("observations", observations)]


def _is_finite(array: NDArray[Any]) -> bool:
    return not np.issubdtype(array.dtype, np.floating) or bool(np.isfinite(array).all())


def _environment(row: np.ndarray) -> str:
    """The first environment of ``(n_envs, …)`` at fault; nothing where it is all of several, as
    normalisation makes it.
    """
    is_bad = ~np.isfinite(row.reshape(len(row), -1)).all(axis=1)
    if is_bad.all() and len(is_bad) > 1:
        return ""
    return f" in environment {int(is_bad.argmax())}"


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
