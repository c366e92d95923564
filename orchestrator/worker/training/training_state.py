"""The state of a training at an iteration boundary: everything that decides how it goes on, but the
replay buffer.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.core import job_parts
from orchestrator.core.decoding import field_values
from orchestrator.worker.envs import env_state
from orchestrator.worker.runtime import sb3_internals as sb3
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import algorithms, saved_model
from orchestrator.worker.training.algorithms import Model

_NORMALIZATION = ("obs_rms", "ret_rms", "returns", "old_obs", "old_reward")
_COUNTERS = ("num_timesteps", sb3.N_UPDATES, sb3.EPISODE_NUM, sb3.PROGRESS_REMAINING)
_BUFFERS = ("ep_info_buffer", "ep_success_buffer")
OF_EACH_RANK = (
    "last_obs",
    "last_original_obs",
    "last_episode_starts",
    "normalization",
    "spaces",
    "envs",
    "unsaveable",
    "generators",
)
"""Keys of a state whose values differ between ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """Counters of the training loop and of its tables."""

    iteration: int = 0
    learner: str | None = None
    progress_rows: int = 0
    timings_rows: int = 0
    ep_rew_mean_first: float | None = None
    training_s: float = 0.0
    """Wall time of the training so far, over all attempts: ``time/time_elapsed`` of the logger."""
    divergences: int = 0
    """Episodes that diverged so far, where that does not end the job."""
    recent_episodes: tuple[tuple[int, int], ...] = ()
    """Episodes of the last iterations, and how many of them diverged, likewise."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """What features in the training have told so far, by name (:mod:`orchestrator.core.job_parts`):
    they go on from there."""


def capture(model: Model, loop: LoopState) -> dict[str, Any]:
    """The state at this iteration boundary. What cannot be saved of the environments is said in
    ``unsaveable``.
    """
    assert model.env is not None
    temperature = algorithms.temperature(model)
    attributes = vars(model)
    envs = None
    unsaveable = ""
    try:
        envs = _envs_state(model.env.unwrapped)
    except env_state.Unsaveable as error:
        unsaveable = str(error)
    return {
        "loop": {**field_values(loop), "parts": job_parts.saved_facts(loop.parts)},
        "policy": model.policy.state_dict(),
        "optimizers": {
            name: optimizer.state_dict() for name, optimizer in algorithms.optimizers(model).items()
        },
        "temperature": None if temperature is None else temperature.detach(),
        "counters": {name: attributes[name] for name in _COUNTERS + _BUFFERS},
        "last_obs": _each_array(attributes[sb3.LAST_OBS], _in_memory_order),
        "last_original_obs": _each_array(attributes[sb3.LAST_ORIGINAL_OBS], _in_memory_order),
        "last_episode_starts": attributes[sb3.LAST_EPISODE_STARTS],
        "model": None if algorithms.is_named(model) else saved_model.save(model),
        "normalization": _normalization_state(model),
        "spaces": pickle.dumps((model.observation_space, model.action_space)),
        "envs": envs,
        "unsaveable": unsaveable,
        "generators": generators(model.device),
    }


def _envs_state(venv: Any) -> Any:
    """The state of all environments in their episodes.

    :raises Unsaveable: it cannot be saved.
    """
    if isinstance(venv, DummyVecEnv):
        return env_state.save(venv.envs)
    if hasattr(venv, "get_state"):
        return venv.get_state()
    raise env_state.Unsaveable(f"{type(venv).__name__} has no get_state")


def _normalization_state(model: Model) -> dict[str, Any] | None:
    """None where nothing is normalised."""
    normalization = model.get_vec_normalize_env()
    if normalization is None:
        return None
    return {
        name: getattr(normalization, name)
        for name in _NORMALIZATION
        if hasattr(normalization, name)
    }


def restore(model: Model, state: dict[str, Any], rank: int = 0) -> LoopState:
    """Bring a freshly built model and its environments to ``state``, all but the replay buffer.

    Where the environments could not be saved, the model's last observations stay None:
    Stable-Baselines3 starts new episodes then, seeded by ``num_timesteps``, so that they differ
    from those at the start.
    """
    assert model.env is not None
    if "ranks" in state:
        state = {**state, **state["ranks"][rank]}
    if state["model"] is not None:
        saved_model.restore(model, state["model"])
    model.policy.load_state_dict(state["policy"])
    for name, optimizer in algorithms.optimizers(model).items():
        optimizer.load_state_dict(state["optimizers"][name])
    temperature = algorithms.temperature(model)
    if temperature is not None:
        with torch.no_grad():
            temperature.copy_(state["temperature"])
    attributes = vars(model)
    attributes.update(state["counters"])
    normalization = model.get_vec_normalize_env()
    if normalization is not None:
        vars(normalization).update(state["normalization"])
    # In place: the spaces are shared with the environments.
    observation_space, action_space = pickle.loads(state["spaces"])
    vars(model.observation_space).update(vars(observation_space))
    vars(model.action_space).update(vars(action_space))
    if state["envs"] is None:
        say(
            f"the environments' state could not be saved ({state['unsaveable']}): new episodes begin"
        )
        seeds = np.random.SeedSequence([model.seed or 0, model.num_timesteps])
        model.env.seed(int(seeds.generate_state(1)[0]))
    else:
        _restore_envs(model.env.unwrapped, state["envs"])
        attributes[sb3.LAST_OBS] = _each_array(state["last_obs"], _in_original_order)
        attributes[sb3.LAST_ORIGINAL_OBS] = _each_array(
            state["last_original_obs"], _in_original_order
        )
        attributes[sb3.LAST_EPISODE_STARTS] = state["last_episode_starts"]
    restore_generators(state["generators"])
    loop = state["loop"]
    return LoopState(**{**loop, "parts": job_parts.restored_facts(loop["parts"])})


def _each_array(observations: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of an observation array, or of each entry of a ``Dict`` one; None where there is
    none.
    """
    if isinstance(observations, dict):
        return {key: function(part) for key, part in observations.items()}
    return None if observations is None else function(observations)


def _in_memory_order(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The array with its axes in their order in memory, and that order.

    Pickling forgets it, and torch's convolutions give other bits for images in another memory
    layout (Stable-Baselines3 transposes them by views).
    """
    axes = np.argsort([-stride for stride in array.strides], kind="stable")
    return np.ascontiguousarray(array.transpose(axes)), axes


def _in_original_order(saved: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    array, axes = saved
    return array.transpose(np.argsort(axes))


def _restore_envs(venv: Any, state: Any) -> None:
    if isinstance(venv, DummyVecEnv):
        env_state.restore(venv.envs, state)
        if not env_state.is_state_complete(venv.envs[0]):
            kind = type(venv.envs[0].unwrapped).__name__
            say(
                f"{kind} was restored by its attributes; state that it keeps elsewhere needs get_state and set_state"
            )
    else:
        venv.set_state(state)


def generators(device: torch.device) -> dict[str, Any]:
    """The states of this process's random generators, for :func:`restore_generators`."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if device.type == "cuda" else None,
    }


def restore_generators(state: dict[str, Any]) -> None:
    """Set this process's random generators to what :func:`generators` returned, perhaps in another
    process.
    """
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state_all(state["cuda"])
