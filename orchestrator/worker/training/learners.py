"""Makes the model of a job's spec: a stock algorithm of Stable-Baselines3, PPO with less overhead, or
a class that the job names.

Only objects of torch and Stable-Baselines3 go into the model, so that ``model.zip`` loads where this
package is not installed.
"""

from __future__ import annotations

import inspect
import os
import random
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.processes.environment_variables import LOCAL_RANK_VARIABLE
from orchestrator.core.worker_spec import (
    SCHEDULES,
    WorkerSpec,
    fast_refused,
    is_algorithm_class,
    parse_schedule,
)
from orchestrator.worker.ranks.distributed_ppo import DistributedPPO
from orchestrator.worker.ranks.gradient_exchange import average_gradients
from orchestrator.worker.ranks.process_group import ProcessGroup
from orchestrator.worker.ranks.ranks import ALONE, Ranks
from orchestrator.worker.training import algorithms, asymmetric_critic
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.fast.qualify import unfit


class Learner(NamedTuple):
    model: Model
    name: str
    reason: str
    """Why this learner was chosen, for people."""


def device(spec: WorkerSpec) -> torch.device:
    """Return the policy's device: a rank that can see several GPUs has its own."""
    if spec.device == "cpu" or spec.ranks == 1:
        return torch.device(spec.device)
    local_rank = int(os.environ.get(LOCAL_RANK_VARIABLE, "0"))
    return torch.device("cuda", local_rank % max(1, torch.cuda.device_count()))


def build(spec: WorkerSpec, venv: VecEnv, ranks: Ranks = ALONE) -> Learner:
    """Make the spec's algorithm as ``stable_baselines3.PPO(...)`` does; ``"auto"`` takes the fast
    learner where it can.

    The algorithm itself sets the seeds (``random``, ``numpy``, ``torch``, the action space, and
    ``seed + i`` for environment *i*). ``optimizer_kwargs`` stays untouched: only where it is absent
    does stable-baselines3 give Adam its ``eps=1e-5``. With several ranks ``venv`` holds this rank's
    environments; the policies start equal, and each rank has random streams of its own.

    :raises ValueError: the spec asks for ``learner = "fast"``, which cannot do it.
    """
    stock = algorithms.class_of(spec.algo)
    if spec.algo == "ppo" and spec.ranks > 1:
        stock = DistributedPPO
    arguments = _arguments(spec, venv, ranks)

    name = "sb3"
    reason = "asked for"
    if spec.learner != "sb3":
        problem = unfit(spec, venv.observation_space, venv.action_space)
        if problem is None:
            name = "fast"
        elif spec.learner == "fast":
            raise ValueError(fast_refused(problem))
        if spec.learner == "auto":
            reason = f"auto: {problem or 'it suits policy and environment'}"
    kind: type[Model] = FastPPO if name == "fast" else stock
    model = kind(env=venv, seed=spec.seed, device=device(spec), **arguments)
    hidden = asymmetric_critic.privileged_values(venv)
    if hidden > 0:
        asymmetric_critic.hide_from_actor(model, hidden)
    if isinstance(ranks, ProcessGroup):
        _join_ranks(model, ranks, spec)
    return Learner(model, name, reason)


def _arguments(spec: WorkerSpec, venv: VecEnv, ranks: Ranks) -> dict[str, Any]:
    """The arguments of the algorithm's class, with one rank's part of minibatches and replay
    buffer.
    """
    policy_kwargs = dict(spec.policy_kwargs)
    if "activation_fn" in policy_kwargs:
        policy_kwargs["activation_fn"] = algorithms.activation(policy_kwargs["activation_fn"])
    arguments: dict[str, Any] = {
        "policy": spec.policy,
        "policy_kwargs": policy_kwargs or None,
        **spec.hyperparameters,
    }
    if ranks.size > 1:
        parameters = inspect.signature(algorithms.class_of(spec.algo)).parameters
        for name in ("batch_size", "buffer_size"):
            if name in parameters:
                arguments[name] = arguments.get(name, parameters[name].default) // ranks.size
    if is_algorithm_class(spec.algo):
        return arguments
    return {name: _argument(name, value, venv) for name, value in arguments.items()}


def _argument(name: str, value: Any, venv: VecEnv) -> Any:
    """A hyperparameter of the job file in the form that Stable-Baselines3 takes."""
    if name in SCHEDULES and isinstance(value, str):
        return LinearSchedule(*parse_schedule(value))
    if name == "action_noise" and value is not None:
        zeros = np.zeros(venv.action_space.shape or ())
        return NormalActionNoise(zeros, zeros + value)
    if name == "train_freq" and isinstance(value, list):
        return tuple(value)
    return value


def _join_ranks(model: Model, ranks: ProcessGroup, spec: WorkerSpec) -> None:
    """Make ``model`` train together with those of the other ranks."""
    if isinstance(model, FastPPO | DistributedPPO):
        # Its update counts the rows of all ranks; what was made with the model those of one.
        model.batch_size *= ranks.size
        model.join(ranks, spec.mode)
    else:
        for optimizer in algorithms.optimizers(model).values():
            average_gradients(optimizer, ranks, spec.mode)
    own = np.random.SeedSequence(spec.seed).spawn(ranks.size)[ranks.rank]
    seeds = own.generate_state(4).tolist()
    random.seed(seeds[0])
    np.random.seed(seeds[1])
    torch.manual_seed(seeds[2])
    model.action_space.seed(seeds[3])
