"""From the job's spec to the model that learns: stock PPO, or the same with less overhead.

Only objects of torch and stable-baselines3 go into the model, so that ``model.zip`` loads
where this package is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.contract import WorkerSpec, fast_refused, parse_schedule
from orchestrator.worker.fast.policy import UnsuitableError
from orchestrator.worker.fast.ppo import FastPPO
from orchestrator.worker.fast.qualify import unfit

SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf")
"""Hyperparameters of PPO that may be functions of the remaining progress."""


class Learner(NamedTuple):
    model: PPO
    name: str
    reason: str
    """Why this learner, for people."""


def build(spec: WorkerSpec, venv: VecEnv) -> Learner:
    """PPO as ``stable_baselines3.PPO(...)`` makes it from these values; with ``learner = "auto"`` fast where it can be.

    Seeds (``random``, ``numpy``, ``torch``, the action space, and environment *i* with ``seed + i``)
    are set by PPO itself. ``optimizer_kwargs`` is not touched: only where it is absent does
    stable-baselines3 give Adam its ``eps=1e-5``.

    :raises RuntimeError: a GPU is asked for and PyTorch sees none; stable-baselines3 would quietly take the CPU.
    :raises ValueError: ``learner = "fast"`` is asked for and cannot be.
    """
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"resources.gpus asks for a GPU, but PyTorch {torch.__version__} sees none here "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'unset')}): install a CUDA build of torch "
            "(python -m orchestrator doctor tells), or set resources.gpus = 0"
        )

    def make(kind: type[PPO]) -> PPO:
        return kind(
            spec.policy,
            venv,
            seed=spec.seed,
            device=spec.device,
            policy_kwargs=_policy_kwargs(spec.policy_kwargs) or None,
            **{name: _schedule(name, value) for name, value in spec.hyperparameters.items()},
        )

    kind, name, reason = _choice(spec, venv)
    try:
        return Learner(make(kind), name, reason)
    except UnsuitableError as error:  # another version of torch or stable-baselines3, say
        if spec.learner == "fast":
            raise
        return Learner(make(PPO), "sb3", f"auto: {error}")


def _choice(spec: WorkerSpec, venv: VecEnv) -> tuple[type[PPO], str, str]:
    """Class, name and reason. :raises ValueError: what is asked for cannot be."""
    if spec.learner == "sb3":
        return PPO, "sb3", "asked for"
    problem = unfit(spec, venv.observation_space, venv.action_space)
    if problem is None:
        return FastPPO, "fast", "asked for" if spec.learner == "fast" else "auto: it suits policy and environment"
    if spec.learner == "fast":
        raise ValueError(fast_refused(problem))
    return PPO, "sb3", f"auto: {problem}"


def logged_columns(model: PPO) -> list[str]:
    """Names under which ``PPO`` logs, in the order in which people look for them.

    Known beforehand, the table need not be rewritten when they appear. (Success rates, which
    some environments give, still add theirs.)
    """
    times = ["iterations", "total_timesteps", "time_elapsed", "fps"]
    losses = ["loss", "policy_gradient_loss", "value_loss", "entropy_loss", "explained_variance", "approx_kl"]
    others = ["clip_fraction", "clip_range", "learning_rate", "n_updates"]
    if hasattr(model.policy, "log_std"):
        others.append("std")
    if model.clip_range_vf is not None:
        others.append("clip_range_vf")
    return [
        *(f"time/{name}" for name in times),
        *(f"rollout/{name}" for name in ("ep_rew_mean", "ep_len_mean")),
        *(f"train/{name}" for name in losses + others),
    ]


def _schedule(name: str, value: Any) -> Any:
    if name in SCHEDULES and isinstance(value, str):
        return LinearSchedule(*parse_schedule(value))
    return value


def _policy_kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with the activation's class in the place of its name: ``"leaky_relu"`` → ``LeakyReLU``."""
    if "activation_fn" not in given:
        return dict(given)
    wanted = given["activation_fn"].replace("_", "")
    classes = {name.lower(): value for name, value in vars(torch.nn).items()}
    return {**given, "activation_fn": classes[wanted]}
