"""Detection of non-finite numbers, once an iteration, before they reach a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

_CHECKED = ("observations", "next_observations", "rewards")
"""Arrays of a replay buffer."""


class NonFinite(Exception):
    """A check failed; the message names what is not finite. :func:`explaining_divergence` says
    when.
    """


def check_rollout(model: Model, steps: int) -> None:
    """Check the rollout just collected, ``steps`` steps of each environment, before it is learnt
    from. :raises NonFinite:
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
    """Name what is not finite in observations, or those of each key. Return None if all is."""
    return _problem_in(_by_name(observations))


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
                problem = problem or observation_problem(_latest_observations(model))
        if problem is None:
            raise
        raise Diverged(
            f"iteration {iteration} (env_steps {model.num_timesteps}): {problem}"
        ) from error


def _parameter_problem(model: Model) -> str | None:
    for name, parameter in model.policy.named_parameters():
        values = parameter.detach()
        if name == "log_std":  # of the actions' standard deviation, which must be finite, too
            values = values.exp()
        if not torch.isfinite(values).all():
            return f"parameter {name} of the policy is not finite or too large"
    return None


def _latest_observations(model: Model) -> Any:
    """Return the observations as the environments gave them, if they are known."""
    original = getattr(model.get_vec_normalize_env(), "old_obs", None)
    return vars(model)[LAST_OBS] if original is None else original


def _rollout(model: Model, steps: int) -> Mapping[str, NDArray[Any]]:
    """Return arrays of the last rollout by name."""
    if isinstance(model, OnPolicy):
        buffer = model.rollout_buffer
        return {
            "rewards": buffer.rewards,
            **_by_name(buffer.observations),
            "values": buffer.values,
            "returns": buffer.returns,
        }
    if isinstance(model, OffPolicy) and replay.is_known(model.replay_buffer):
        assert model.replay_buffer is not None
        end = model.replay_buffer.pos
        rows = np.arange(end - steps, end) % model.replay_buffer.buffer_size
        arrays = replay.arrays_of(model.replay_buffer)
        return {
            name: array[rows]
            for name, array in arrays.items()
            if name.partition(".")[0] in _CHECKED
        }
    return {}


def _by_name(observations: Any) -> Mapping[str, Any]:
    return observations if isinstance(observations, dict) else {"observations": observations}


def _problem_in(arrays: Mapping[str, Any]) -> str | None:
    """Name the first of ``arrays`` that is not finite; None is skipped."""
    for name, array in arrays.items():
        if array is None or not np.issubdtype(array.dtype, np.floating):
            continue
        is_finite = np.isfinite(array)
        if not is_finite.all():
            return f"{name} are not finite: {array[~is_finite][0]}"
    return None
