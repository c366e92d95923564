"""Every private name of stable-baselines3 and torch that the worker uses, so that an upgrade
changes one file.

``tests/worker/runtime/test_sb3_internals.py`` has a test for each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs
from torch.distributions import Distribution
from torch.optim import Adam, Optimizer, RMSprop

# Attributes of a model, which loops read and write through ``vars(model)``, without a call a step.
LAST_OBS = "_last_obs"
"""The observations that the next action is for."""
LAST_ORIGINAL_OBS = "_last_original_obs"
"""The same before normalisation, of off-policy algorithms."""
LAST_EPISODE_STARTS = "_last_episode_starts"
"""``(n_envs,)`` whether an episode starts with these observations."""
N_UPDATES = "_n_updates"
"""Epochs trained."""
EPISODE_NUM = "_episode_num"
"""Episodes ended, of off-policy algorithms."""
PROGRESS_REMAINING = "_current_progress_remaining"
"""The share of the training that is still to come."""
_DYNAMO_DISABLE = "__dynamo_disable"


def update_info_buffer(model: BaseAlgorithm) -> Callable[..., None]:
    """The method that counts the ended episodes in a step's ``infos`` and ``dones`` towards
    ``ep_rew_mean``.
    """
    return model._update_info_buffer


def update_progress(model: OnPolicyAlgorithm, total_timesteps: int) -> None:
    """Tell schedules how much of the training is left."""
    model._update_current_progress_remaining(model.num_timesteps, total_timesteps)


def setup_learn(
    model: BaseAlgorithm, total_timesteps: int, *, reset_num_timesteps: bool
) -> BaseCallback:
    """What ``learn()`` does first: reset the environments unless observations are there, make an
    empty callback.

    ``time/fps`` of the logger is then over all attempts, as ``time/time_elapsed`` is.
    """
    _, callback = model._setup_learn(total_timesteps, None, reset_num_timesteps=reset_num_timesteps)
    model._num_timesteps_at_start = 0
    return callback


def saved_parts(model: BaseAlgorithm) -> list[str]:
    """Return the names of policy, optimisers and other parts whose ``state_dict`` is in
    ``model.zip``.
    """
    return model._get_torch_save_params()[0]


def wrap_env(model: BaseAlgorithm, venv: VecEnv) -> VecEnv:
    """``venv`` with the wrappers that the model puts around its own: images transposed."""
    return model._wrap_env(venv)


def env_indices(venv: VecEnv, indices: int | Iterable[int] | None) -> list[int]:
    """The environments that an ``indices`` argument of ``get_attr`` and the like selects."""
    return list(venv._get_indices(indices))


class ExtendedDummyVecEnv(DummyVecEnv):
    """``DummyVecEnv`` with public names instead of the private ones that subclasses need."""

    save_observation = DummyVecEnv._save_obs
    """``(index, observation)``: writes an environment's observation into ``buf_obs``."""

    def observations(self) -> VecEnvObs:
        """What ``reset`` returns: a copy of ``buf_obs`` in the form of the observation space."""
        return super()._obs_from_buf()

    def _obs_from_buf(self) -> VecEnvObs:
        return self.observations()


def fused_adam() -> Callable[..., None]:
    """Torch's kernel for one step of Adam over whole vectors."""
    return torch._fused_adam_


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Have torch's distributions not check their arguments in this block.

    These are several checks of every mean and deviation at every step, and the NaN guard notices
    what is not finite anyway.
    """
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


class ExtendedPPO(PPO):
    """``stable_baselines3.PPO`` with public names instead of the private ones that subclasses
    need.
    """

    unsaved: ClassVar[tuple[str, ...]] = ()
    """Attributes that are not written to ``model.zip``."""

    def setup_done(self) -> None:
        """Called when policy and rollout buffer have been made."""

    def begin_update(self) -> tuple[float, float | None]:
        """Training mode and the current learning rate are set. Returns the current clip range, and
        the values'.
        """
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        remaining = self._current_progress_remaining
        limit = None if self.clip_range_vf is None else self.clip_range_vf(remaining)  # type: ignore[operator]
        return self.clip_range(remaining), limit  # type: ignore[operator]

    def count_epochs(self, epochs: int) -> int:
        """Add to ``train/n_updates`` and return it."""
        self._n_updates += epochs
        return self._n_updates

    def _setup_model(self) -> None:
        super()._setup_model()
        self.setup_done()

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *self.unsaved]


def keep_compiler_out() -> None:
    """Keep ``torch.optim`` from importing the compiler ``torch._dynamo`` (0.6 s, 70 MiB), which
    nothing here uses.

    Four methods of ``Optimizer`` are wrapped in ``torch._disable_dynamo``: its first call imports
    the compiler, only to ask for a version of the function that is not compiled, and keeps it on
    the function as ``__dynamo_disable``. Without compilation the function itself is that version,
    so it is set beforehand. ``step`` of Adam and RMSprop imports the compiler to mark a graph
    break, which has no effect outside of compilation: its wrapper is replaced by one that sets the
    gradient mode alone.

    Nothing changes when the compiler is loaded already, or when torch is built otherwise than
    expected.
    """
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        function = getattr(getattr(Optimizer, name), "__wrapped__", None)
        if function is not None and not hasattr(function, _DYNAMO_DISABLE):
            setattr(function, _DYNAMO_DISABLE, function)

    for kind in (Adam, RMSprop):
        plain_step = getattr(kind.step, "__wrapped__", None)
        is_named_step = getattr(kind.step, "__name__", "") == "step"
        if plain_step is not None and is_named_step and not hasattr(kind.step, "hooked"):
            kind.step = _in_gradient_mode(plain_step)  # type: ignore[method-assign]


def _in_gradient_mode(plain_step: Callable[..., Any]) -> Callable[..., Any]:
    """A ``step`` that sets the gradient mode and calls ``plain_step``."""

    def step(self: Optimizer, closure: Any = None) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain_step(self, closure)

    return step
