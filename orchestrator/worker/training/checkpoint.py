"""Checkpoints: everything that decides how training goes on, in one file that is whole or absent.

A training that is killed at any instant and goes on from its newest checkpoint ends with the
same bits as one that was never killed. A checkpoint holds the spec's fingerprint, so that nothing
goes on under other hyperparameters. Of a replay buffer it knows only how much of it there was: the
rows themselves are in files of their own (:mod:`.replay`). Loading a checkpoint runs code (pickle): only
a job's own are loaded, and a file that the user names with ``play --checkpoint``.
"""

from __future__ import annotations

import io
import math
import pickle
import random
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.paths import REPLAY
from orchestrator.worker.distributed.ranks import ALONE, Ranks
from orchestrator.worker.envs import env_state
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.replay import DamagedError, Replay

KEPT = 2
UNDERWAY_S = 60.0
"""So long may a file be on its way home from another node: a few seconds, or until a stalled network works again."""
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


OF_EACH_RANK = (
    *("last_obs", "last_original_obs", "last_episode_starts", "normalization", "spaces", "envs", "unsaveable"),
    "generators",
)
"""What is not common to all ranks."""


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
    """The ``checkpoints`` directory of one job, written by one process at a time.

    Ranks may run on nodes that share no files. Each then has such a directory of its own, of which rank 0's alone gets
    new checkpoints, and what they write comes home rank by rank. At home there is at any time a checkpoint with the
    replay buffers of all, as long as nothing takes longer than :data:`UNDERWAY_S` to get there.

    :param replay: the replay buffer that belongs to them, where the algorithm has one; :meth:`newest` fills it.
    :param n_envs: env_steps of one row of it.
    :param before_writing: called before a file is written.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: str,
        replay: Replay | None = None,
        n_envs: int = 1,
        *,
        before_writing: Callable[[], object] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._fingerprint = fingerprint
        self._replay, self._n_envs = replay, n_envs
        self._before_writing, self._now = before_writing, now
        self._written: dict[Path, float] = {}
        """When; the files of earlier attempts are those that came from home."""
        directory.mkdir(parents=True, exist_ok=True)

    def save(self, env_steps: int, state: dict[str, Any], ranks: Ranks = ALONE, *, is_last: bool = False) -> None:
        """Write one checkpoint and drop what is older than the last :data:`KEPT`.

        Of several ranks all call it, and rank 0 writes one file with what each has of its own. The others forget what
        none of its checkpoints needs that are there while it does so. Where ranks have replay buffers, it also keeps
        those checkpoints that home may have to go on from.

        :param is_last: nothing will be learnt after it, so that it needs no replay buffer.
        :raises OSError: as the disk answers; the earlier checkpoints stand then.
        """
        if self._replay is not None and not is_last:
            rows = env_steps // self._n_envs
            self._before_writing()
            self._replay.save(rows)
            state = {"rows": rows, **state}
        if ranks.size > 1:  # when all have answered, the replay buffers of all are on the disk
            told = ranks.all_gather((self._oldest(), {name: state[name] for name in OF_EACH_RANK}))
            state["ranks"] = [own for _, own in told]
            if ranks.rank > 0:
                if not is_last:  # afterwards rank 0 removes all replay buffers
                    self._forget_before(told[0][0])
                return
        # Through memory: torch reports a full disk as a RuntimeError of its own.
        content = io.BytesIO()
        torch.save({"fingerprint": self._fingerprint, "env_steps": env_steps, **state}, content)
        self._before_writing()
        write_whole(self._path(env_steps), content.getvalue())
        self._written[self._path(env_steps)] = self._now()
        self._drop_before(self._first_kept(apart=ranks.size > 1 and self._replay is not None))

    def _first_kept(self, *, apart: bool) -> int:
        """Place of the oldest checkpoint to be kept.

        :param apart: what other ranks wrote for a checkpoint may come home so much later than it, or earlier, that of
            those which have just been written none can be gone on from.
        """
        paths = self._paths()
        first = max(0, len(paths) - KEPT)
        if apart:
            settled = self._now() - UNDERWAY_S
            whole = sum(self._written.get(path, -math.inf) <= settled for path in paths)
            first = min(first, max(0, whole - 1))
        return first

    def trained(self) -> None:
        """The policy is saved: what only going on with its training needs is removed, of all ranks seen from here."""
        if self._replay is not None:
            self._drop_before(-1)
            for directory in self._directory.glob(f"{REPLAY}*"):
                shutil.rmtree(directory)

    def _drop_before(self, first: int) -> None:
        """Remove the checkpoints before place ``first``, and what the others do not need of the replay buffer."""
        for path in self._paths()[:first]:
            path.unlink(missing_ok=True)
            self._written.pop(path, None)
        self._forget_before(self._oldest())

    def _oldest(self) -> int | None:
        """env_steps of the oldest checkpoint."""
        paths = self._paths()
        return _env_steps(paths[0]) if paths else None

    def _forget_before(self, env_steps: int | None) -> None:
        """Remove what nobody needs of the replay buffer who goes on from there or later."""
        if self._replay is not None and env_steps is not None:
            self._replay.forget_before(env_steps // self._n_envs)

    def newest(self, ranks: Ranks = ALONE) -> dict[str, Any] | None:
        """The newest checkpoint that is whole, or None. Damaged ones are removed, with a line in the log.

        Of several ranks all call it and get the same one, each with its own replay buffer filled.

        :raises ValueError: when it belongs to another spec.
        :raises OSError: when one cannot be read.
        """
        while True:
            state = self._newest_whole(ranks.size) if ranks.rank == 0 else None
            if ranks.size == 1:
                return state
            chosen: int | None = ranks.all_gather(state and state["env_steps"])[0]
            problem = None
            if chosen is None:
                self._anew()
            elif ranks.rank > 0:
                try:
                    state = self._filled(load(self._path(chosen).read_bytes()))
                except DamagedError as error:
                    problem = f"rank {ranks.rank}: {error}"
            problems = [found for found in ranks.all_gather(problem) if found is not None]
            if not problems:
                return state
            if ranks.rank == 0 and chosen is not None:
                self._remove(self._path(chosen), problems[0])

    def _newest_whole(self, ranks: int) -> dict[str, Any] | None:
        for stray in self._directory.glob(".*.tmp"):  # an earlier attempt was killed while writing
            stray.unlink(missing_ok=True)
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
                before = len(state["ranks"]) if "ranks" in state else 1
                what = f"resources.ranks = {before}, not {ranks}" if before != ranks else "other settings of this job"
                raise ValueError(
                    f"{path} was written under {what}; "
                    "remove the checkpoints to train anew, or restore the settings to go on"
                )
            try:
                return self._filled(state)
            except DamagedError as error:
                self._remove(path, str(error))
        self._anew()
        return None

    def _filled(self, state: dict[str, Any]) -> dict[str, Any]:
        """``state``, when the replay buffer has been filled as it was. :raises DamagedError: it is not whole."""
        if self._replay is not None and "rows" in state:
            self._replay.restore(state["rows"])
        return state

    def _remove(self, path: Path, problem: str) -> None:
        say(f"checkpoint {path.name} is removed, its replay buffer being damaged: {problem}")
        path.unlink()

    def _anew(self) -> None:
        if self._replay is not None:
            self._replay.clear()

    def _path(self, env_steps: int) -> Path:
        return self._directory / f"checkpoint-{env_steps:012d}.pt"

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._directory.iterdir() if _NAME.fullmatch(path.name))


def _env_steps(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


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


def capture(model: Model, place: Place) -> dict[str, Any]:
    """Everything at this iteration boundary but the replay buffer.

    What cannot be saved of the environments is said in ``unsaveable``.
    """
    assert model.env is not None
    normalization, temperature = model.get_vec_normalize_env(), algorithms.temperature(model)
    try:
        envs, unsaveable = _save_envs(model.env.unwrapped), ""
    except env_state.Unsaveable as error:
        envs, unsaveable = None, str(error)
    return {
        "place": place,
        "policy": model.policy.state_dict(),
        "optimizers": {name: one.state_dict() for name, one in algorithms.optimizers(model).items()},
        "temperature": None if temperature is None else temperature.detach(),
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "last_obs": _each_array(model._last_obs, _in_memory_order),
        "last_original_obs": _each_array(model._last_original_obs, _in_memory_order),
        "last_episode_starts": model._last_episode_starts,
        "normalization": normalization
        and {name: getattr(normalization, name) for name in _NORMALIZATION if hasattr(normalization, name)},
        "spaces": pickle.dumps((model.observation_space, model.action_space)),
        "envs": envs,
        "unsaveable": unsaveable,
        "generators": generators(model.device),
    }


def restore(model: Model, state: dict[str, Any], rank: int = 0) -> Place:
    """Put a freshly built model and its environments where ``state`` was captured, all but the replay buffer.

    Where the environments could not be saved, ``model._last_obs`` is left None: Stable-Baselines3 begins
    new episodes then, seeded by how far the training is, so that they differ from those at the start.
    """
    assert model.env is not None
    state = {**state, **state["ranks"][rank]} if "ranks" in state else state
    place: Place = state["place"]
    model.policy.load_state_dict(state["policy"])
    for name, optimizer in algorithms.optimizers(model).items():
        optimizer.load_state_dict(state["optimizers"][name])
    temperature = algorithms.temperature(model)
    if temperature is not None:
        with torch.no_grad():
            temperature.copy_(state["temperature"])
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
        model._last_original_obs = _each_array(state["last_original_obs"], _as_it_was)
        model._last_episode_starts = state["last_episode_starts"]
    set_generators(state["generators"])
    return place


def _each_array(observations: Any, function: Callable[[Any], Any]) -> Any:
    """``function`` of an observation array, or of every part of a ``Dict`` one; None where there is none."""
    if observations is None:
        return None
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
        if not env_state.is_state_complete(venv.envs[0]):
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
