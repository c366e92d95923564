"""Checkpoints: everything that decides how training goes on, in one file that is whole or absent.

A training that is killed at any instant and goes on from its newest checkpoint ends with the
same bits as one that was never killed. A checkpoint holds the spec's fingerprint, so that nothing
goes on under other hyperparameters. Loading one runs code (pickle): only a job's own are loaded, and a
file that the user names with ``play --checkpoint``.
"""

from __future__ import annotations

import io
import pickle
import random
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from orchestrator.contract import write_whole
from orchestrator.worker import env_state
from orchestrator.worker.progress import say

KEPT = 2
_NAME = re.compile(r"checkpoint-(\d{12})\.pt")
_NORMALIZATION = ("obs_rms", "ret_rms", "returns", "old_obs", "old_reward")
_COUNTERS = (
    "num_timesteps",
    "_n_updates",
    "_episode_num",
    "_current_progress_remaining",
    "ep_info_buffer",
    "ep_success_buffer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the training stands beside the model: counters of the loop and of its tables."""

    iteration: int = 0
    learner: str | None = None
    progress_rows: int = 0
    timings_rows: int = 0
    ep_rew_mean_first: float | None = None
    training_s: float = 0.0
    """Wall time of the training so far, over all attempts; ``time/time_elapsed`` of the logger."""


class CheckpointStore:
    """The ``checkpoints`` directory of one job, written by one process at a time."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._directory = directory
        self._fingerprint = fingerprint
        directory.mkdir(parents=True, exist_ok=True)
        for stray in directory.glob(".*.tmp"):  # an earlier attempt was killed while writing
            stray.unlink(missing_ok=True)

    def save(self, env_steps: int, state: dict[str, Any]) -> None:
        """Write one checkpoint and drop all but the last :data:`KEPT`.

        :raises OSError: as the disk answers; the earlier checkpoints stand then.
        """
        # Through memory: torch reports a full disk as a RuntimeError of its own.
        content = io.BytesIO()
        torch.save({"fingerprint": self._fingerprint, **state}, content)
        write_whole(self._directory / f"checkpoint-{env_steps:012d}.pt", content.getvalue())
        for path in self._paths()[:-KEPT]:
            path.unlink(missing_ok=True)

    def newest(self) -> dict[str, Any] | None:
        """The newest checkpoint that is whole, or None. Damaged ones are removed, with a line in the log.

        :raises ValueError: when it belongs to another spec.
        :raises OSError: when one cannot be read.
        """
        for path in reversed(self._paths()):
            content = path.read_bytes()  # what the disk itself refuses is no damage: the file stays
            try:
                state = load(content)
            except MemoryError:
                raise
            except Exception as error:  # damage shows in many ways: zip, pickle and torch errors
                say(f"checkpoint {path.name} is damaged and removed: {type(error).__name__}: {error}")
                path.unlink()
                continue
            if state["fingerprint"] != self._fingerprint:
                raise ValueError(
                    f"{path} was written under other settings of this job; "
                    "remove the checkpoints to train anew, or restore the settings to go on"
                )
            return state
        return None

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))


def load(content: bytes) -> dict[str, Any]:
    """The state in a checkpoint file's bytes. It runs code: see above.

    :raises Exception: of many kinds, when they are damaged.
    """
    file = io.BytesIO(content)
    with zipfile.ZipFile(file) as archive:  # torch itself does not compare checksums
        bad = archive.testzip()
    if bad is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {bad}")
    file.seek(0)
    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=False)
    return state


def capture(model: PPO, place: Place) -> dict[str, Any]:
    """Everything at this iteration boundary. What cannot be saved of the environments is said in ``unsaveable``."""
    assert model.env is not None
    normalization = model.get_vec_normalize_env()
    try:
        envs, unsaveable = _save_envs(model.env.unwrapped), ""
    except env_state.Unsaveable as error:
        envs, unsaveable = None, str(error)
    return {
        "place": place,
        "policy": model.policy.state_dict(),
        "optimizer": model.policy.optimizer.state_dict(),
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "last_obs": _each_array(model._last_obs, _in_memory_order),
        "last_episode_starts": model._last_episode_starts,
        "normalization": normalization
        and {name: getattr(normalization, name) for name in _NORMALIZATION if hasattr(normalization, name)},
        "spaces": pickle.dumps((model.observation_space, model.action_space)),
        "envs": envs,
        "unsaveable": unsaveable,
        "generators": generators(model.device),
    }


def restore(model: PPO, state: dict[str, Any]) -> Place:
    """Put a freshly built model and its environments where ``state`` was captured.

    Where the environments could not be saved, ``model._last_obs`` is left None: Stable-Baselines3 begins
    new episodes then, seeded by how far the training is, so that they differ from those at the start.
    """
    assert model.env is not None
    place: Place = state["place"]
    model.policy.load_state_dict(state["policy"])
    model.policy.optimizer.load_state_dict(state["optimizer"])
    vars(model).update(state["counters"])
    normalization = model.get_vec_normalize_env()
    if normalization is not None:
        vars(normalization).update(state["normalization"])
    # In place: the spaces are shared with the environments.
    for space, saved in zip((model.observation_space, model.action_space), pickle.loads(state["spaces"]), strict=True):
        vars(space).update(vars(saved))
    if state["envs"] is None:
        say(f"the environments' state could not be saved ({state['unsaveable']}): new episodes begin")
        seeds = np.random.SeedSequence([model.seed or 0, model.num_timesteps])
        model.env.seed(int(seeds.generate_state(1)[0]))
    else:
        _restore_envs(model.env.unwrapped, state["envs"])
        model._last_obs = _each_array(state["last_obs"], _as_it_was)
        model._last_episode_starts = state["last_episode_starts"]
    set_generators(state["generators"])
    return place


def _each_array(observations: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of an observation array, or of every part of a ``Dict`` one."""
    if isinstance(observations, dict):
        return {key: function(part) for key, part in observations.items()}
    return function(observations)


def _in_memory_order(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The array with its axes in the order in which they lie in memory, and that order.

    Pickling forgets it, and torch's convolutions give other bits for images that lie otherwise
    (Stable-Baselines3 transposes them by views).
    """
    axes = np.argsort([-stride for stride in array.strides], kind="stable")
    return np.ascontiguousarray(array.transpose(axes)), axes


def _as_it_was(saved: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    array, axes = saved
    return array.transpose(np.argsort(axes))


def _save_envs(venv: VecEnv) -> Any:
    """:raises env_state.Unsaveable: when their state cannot be saved."""
    if isinstance(venv, DummyVecEnv):
        return env_state.save(venv.envs)
    if hasattr(venv, "get_state"):
        return venv.get_state()
    raise env_state.Unsaveable(f"{type(venv).__name__} has no get_state")


def _restore_envs(venv: Any, state: Any) -> None:
    if isinstance(venv, DummyVecEnv):
        env_state.restore(venv.envs, state)
        if not env_state.vouched_for(venv.envs[0]):
            kind = type(venv.envs[0].unwrapped).__name__
            say(f"{kind} was restored by its attributes; what it keeps elsewhere, get_state/set_state must save")
    else:
        venv.set_state(state)


def generators(device: torch.device) -> dict[str, Any]:
    """The states of this process's random generators, for :func:`set_generators`."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if device.type == "cuda" else None,
    }


def set_generators(state: dict[str, Any]) -> None:
    """Let them go on where :func:`generators` was called, perhaps in another process."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state_all(state["cuda"])
