"""The state of a training at an iteration boundary: everything that decides how it goes on, but the
replay buffer.
"""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from orchestrator.core.decoding import field_values
from orchestrator.worker.envs import env_state
from orchestrator.worker.runtime import sb3_internals as sb3
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.sealed_files import unseal

_NORMALIZATION = ("obs_rms", "ret_rms", "returns", "old_obs", "old_reward")
_COUNTERS = (
    "num_timesteps",
    sb3.N_UPDATES,
    sb3.EPISODE_NUM,
    sb3.PROGRESS_REMAINING,
    "ep_info_buffer",
    "ep_success_buffer",
)
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
    progress_rows: int = 0
    timings_rows: int = 0
    ep_rew_mean_first: float | None = None
    training_s: float = 0.0
    """Wall time of the training so far, over all attempts: ``time/time_elapsed`` of the logger."""
    divergences: int = 0
    """Episodes that diverged so far, where divergence does not end the job."""
    recent_episodes: Sequence[tuple[int, int]] = ()
    """Episodes of each of the last iterations, and how many of them diverged, where divergence does
    not end the job."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """What features in the training have told so far, by name (:mod:`orchestrator.core.job_parts`):
    they go on from there."""


def capture(model: Model, loop: LoopState) -> dict[str, Any]:
    """Return the state at this iteration boundary. What cannot be saved of the environments is said
    in ``unsaveable``.
    """
    assert model.env is not None
    venv: Any = model.env.unwrapped
    attributes = vars(model)
    temperature = algorithms.temperature(model)
    optimizers = algorithms.optimizers(model)
    normalization = model.get_vec_normalize_env()
    envs = None
    unsaveable = ""
    try:
        if isinstance(venv, DummyVecEnv):
            envs = env_state.save(venv.envs)
        elif hasattr(venv, "get_state"):
            envs = venv.get_state()
        else:
            unsaveable = f"{type(venv).__name__} has no get_state"
    except env_state.Unsaveable as error:
        unsaveable = str(error)
    state: dict[str, Any] = {
        "loop": field_values(loop),
        "policy": model.policy.state_dict(),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        "temperature": None if temperature is None else temperature.detach(),
        "counters": {name: attributes[name] for name in _COUNTERS},
        "last_obs": _as_tensors(attributes[sb3.LAST_OBS]),
        "last_original_obs": _as_tensors(attributes[sb3.LAST_ORIGINAL_OBS]),
        "last_episode_starts": attributes[sb3.LAST_EPISODE_STARTS],
        "normalization": None,
        "spaces": pickle.dumps((model.observation_space, model.action_space)),
        "envs": envs,
        "unsaveable": unsaveable,
        "generators": generators(model.device),
    }
    if normalization is not None:
        values = vars(normalization)
        state["normalization"] = {name: values[name] for name in _NORMALIZATION if name in values}
    return state


def restore(model: Model, state: dict[str, Any]) -> LoopState:
    """Bring a freshly built model and its environments to ``state``, all but the replay buffer.

    Where the environments could not be saved, the model's last observations stay None:
    Stable-Baselines3 starts new episodes then, seeded by ``num_timesteps``, so that they differ
    from those at the start.
    """
    assert model.env is not None
    venv: Any = model.env.unwrapped
    attributes = vars(model)
    model.policy.load_state_dict(state["policy"])
    for name, optimizer in algorithms.optimizers(model).items():
        optimizer.load_state_dict(state["optimizers"][name])
    temperature = algorithms.temperature(model)
    if temperature is not None:
        with torch.no_grad():
            temperature.copy_(state["temperature"])
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
        if isinstance(venv, DummyVecEnv):
            env_state.restore(venv.envs, state["envs"])
        else:
            venv.set_state(state["envs"])
        attributes[sb3.LAST_OBS] = _as_arrays(state["last_obs"])
        attributes[sb3.LAST_ORIGINAL_OBS] = _as_arrays(state["last_original_obs"])
        attributes[sb3.LAST_EPISODE_STARTS] = state["last_episode_starts"]
    restore_generators(state["generators"])
    return LoopState(**state["loop"])


def _as_tensors(observations: Any) -> Any:
    """Observations, or those of each key, as tensors.

    Pickling an array forgets the order of its axes in memory, and torch's convolutions give other
    bits for images in another one (Stable-Baselines3 transposes them by views).
    """
    if isinstance(observations, dict):
        return {key: torch.from_numpy(part) for key, part in observations.items()}
    return None if observations is None else torch.from_numpy(observations)


def _as_arrays(saved: Any) -> Any:
    """The observations of which ``saved`` is :func:`_as_tensors`."""
    if isinstance(saved, dict):
        return {key: part.numpy() for key, part in saved.items()}
    return None if saved is None else saved.numpy()


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


def load(content: bytes) -> dict[str, Any]:
    """Return the state in a checkpoint file's bytes. Loading runs code (pickle).

    :raises DamagedError: they are not those that were written.
    :raises Exception: of any kind, when unpickling fails: whole bytes are not damaged, so the
        reason is code that has changed, or a class of the user's.
    """
    file = io.BytesIO(unseal(content))
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return state
