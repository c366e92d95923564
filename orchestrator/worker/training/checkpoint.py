"""The checkpoints of a training: which one an attempt resumes from, when the next one is written, and
their files. What a checkpoint holds is in :mod:`.training_state`.

A checkpoint holds everything that decides how a training goes on, and is whole or absent. A training
that is killed at any instant and resumes from its newest checkpoint ends with the same bits as one
that was never killed. A checkpoint holds the spec's fingerprint, so that none is resumed under other
hyperparameters. It holds only the number of rows of a replay buffer; the rows are in files of their
own (:mod:`.replay`). Loading a checkpoint runs code (pickle): only a job's own are loaded, and what
the user names with ``init``, ``load`` or ``play --checkpoint``.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from orchestrator.core.files.atomic_files import remove_partial_files, write_whole
from orchestrator.core.files.regular_files import open_regular
from orchestrator.core.paths import CHECKPOINT, DAMAGED, REPLAY
from orchestrator.core.worker_spec import is_algorithm_class
from orchestrator.worker.runtime.failures import CheckpointError, describe
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import asymmetric_critic, replay, training_state
from orchestrator.worker.training.algorithms import OffPolicy
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.sealed_files import DamagedError, seal
from orchestrator.worker.training.training_state import OF_EACH_RANK, LoopState, load

KEPT = 2
"""Checkpoints of a job."""
TRANSFER_S = 60.0
"""Longest time that a file takes from another node to the run directory."""


class Checkpoints:
    """The checkpoints of one training. All ranks call its methods.

    Ranks may run on nodes that share no files. Each then has a directory of its own. Only rank 0's
    gets new checkpoints, and the files of each rank are copied to the run directory independently.
    So that the run directory always has a checkpoint with the replay buffers of all ranks, those of
    the last :data:`TRANSFER_S` are kept then, and the one before.
    """

    def __init__(self, attempt: Attempt) -> None:
        model = attempt.model
        self._attempt = attempt
        self._directory = attempt.paths.checkpoints
        self._damaged: list[str] = []
        """A sentence about each checkpoint that was damaged, without its full stop."""
        self._saved_at: int | None = None
        """env_steps of the newest one."""
        self._since = time.monotonic()
        """When this attempt has written one, by the monotonic clock; before that, when it began."""
        self._recent: list[float] = []
        """When those of the last :data:`TRANSFER_S` were begun, by the monotonic clock."""
        self._replay: replay.Replay | None = None
        attempt.before_writing()
        self._directory.mkdir(parents=True, exist_ok=True)
        if isinstance(model, OffPolicy) and replay.is_known(model.replay_buffer):
            assert model.replay_buffer is not None
            directory = attempt.paths.replay(attempt.ranks.rank)
            self._replay = replay.Replay(directory, model.replay_buffer)
        if is_algorithm_class(attempt.spec.algo):
            say(
                f"{attempt.spec.algo} resumes with its policy, optimizers, counters and a plain replay "
                "buffer; its other attributes begin anew"
            )

    # -- at the start

    def resume(self) -> LoopState:
        """Bring the model to the state of the newest whole checkpoint; without one, to the policy
        that it starts from. Damaged checkpoints get another name.

        :raises CheckpointError: it is not damaged, but cannot be loaded, or it is of another spec;
            it is kept.
        """
        attempt = self._attempt
        state = self._newest()
        if state is None:
            loop = LoopState()
            self._start_from_policy()
        else:
            with explaining_failure(self._path(state["env_steps"])):
                loop = self._restore(state)
            attempt.facts.resumed_from = attempt.model.num_timesteps
            say(f"resumed at {attempt.model.num_timesteps} env_steps")
        if self._damaged:
            starts = f"the training starts at {attempt.model.num_timesteps} env_steps"
            warning = "; ".join([*self._damaged, starts])
            attempt.reporter.warning = warning
            say(warning)
        self._saved_at = attempt.facts.resumed_from
        self._since = time.monotonic()
        return loop

    def _newest(self) -> dict[str, Any] | None:
        """Load the newest whole checkpoint: all ranks the same one, each with its own part and replay
        buffer.
        """
        ranks = self._attempt.ranks
        if ranks.rank == 0:
            remove_partial_files(self._directory)
        while True:
            newest: int | None = ranks.all_gather_object(max(self._env_steps(), default=None))[0]
            if newest is None:
                if self._replay is not None:
                    self._replay.clear()
                return None
            path = self._path(newest)
            problem = None
            try:
                with explaining_failure(path):
                    state = self._load(path)
            except DamagedError as error:
                problem = str(error)
            problems = [text for text in ranks.all_gather_object(problem) if text is not None]
            if not problems:
                return state
            if ranks.rank == 0:
                aside = path.replace(path.with_name(f"{path.name}{DAMAGED}"))
                self._damaged.append(
                    f"{path.name} is damaged ({problems[0]}) and was set aside as {aside.name}"
                )

    def _load(self, path: Path) -> dict[str, Any]:
        """Load a checkpoint, and fill the replay buffer as it was."""
        spec = self._attempt.spec
        with open_regular(path) as file:
            state = load(file.read())
        earlier = [spec.fingerprint(total) for total in spec.extended_from]
        if state["fingerprint"] not in (spec.fingerprint(), *earlier):
            raise ValueError("it was written under other settings of this job")
        if self._replay is not None and "rows" in state:
            self._replay.restore(state["rows"])
        return {**state, **state["ranks"][self._attempt.ranks.rank]}

    def _restore(self, state: dict[str, Any]) -> LoopState:
        is_unfinished = state["env_steps"] < self._attempt.spec.total_timesteps
        if self._replay is not None and "rows" not in state and is_unfinished:
            raise ValueError(
                "it has no replay buffer, as it was the last of a training, which now goes on"
            )
        return training_state.restore(self._attempt.model, state)

    def _start_from_policy(self) -> None:
        spec = self._attempt.spec
        model = self._attempt.model
        if spec.init_sha256 is None:
            return
        from orchestrator.worker.training import start_policy

        policy = start_policy.StartPolicy.from_file(self._attempt.paths.init, spec.init_sha256)
        what = start_policy.start(model, policy)
        say(f"starts from {spec.init} ({policy.label}): {what}")
        assert model.env is not None
        hidden = asymmetric_critic.privileged_values(model.env)
        if hidden > 0:
            asymmetric_critic.set_to_zero(model, hidden)

    # -- in the loop

    @property
    def is_newest_of_now(self) -> bool:
        """Whether the newest checkpoint is of the present env_steps."""
        return self._saved_at == self._attempt.model.num_timesteps

    def is_due(self, steps_before: int) -> bool:
        """Return whether the interval of the job is over. By time, rank 0 decides for all;
        env_steps are the same on every rank.

        :param steps_before: env_steps at the start of the iteration.
        """
        every = self._attempt.spec.checkpoint_every
        every_s = self._attempt.spec.checkpoint_every_s
        if every_s is not None:
            elapsed_s = time.monotonic() - self._since
            return self._attempt.ranks.rank == 0 and elapsed_s >= every_s
        steps = self._attempt.model.num_timesteps
        return every is not None and steps // every > steps_before // every

    def save(self, loop: LoopState) -> None:
        """Write a checkpoint and remove those that are no longer needed.

        Rank 0 writes one file with what differs between ranks. The others remove the replay rows
        that none of rank 0's checkpoints needs.

        :raises OSError: it cannot be written; the earlier checkpoints stand.
        """
        attempt = self._attempt
        spec = attempt.spec
        ranks = attempt.ranks
        begun = time.monotonic()
        env_steps = attempt.model.num_timesteps
        # Nothing is learnt after the last one, so that it needs no replay buffer.
        is_last = attempt.is_trained and not spec.keep_replay_buffer
        state = training_state.capture(attempt.model, loop)
        attempt.facts.unsaveable = state["unsaveable"] or None
        state |= {"fingerprint": spec.fingerprint(), "env_steps": env_steps}
        if self._replay is not None and not is_last:
            attempt.before_writing()
            state["rows"] = env_steps // spec.n_envs
            self._replay.save(state["rows"])
        own = {name: state[name] for name in OF_EACH_RANK}
        of_ranks = ranks.all_gather_object((min(self._env_steps(), default=0), own))
        # Now that all have answered, the replay buffers of all are on the disk.
        if ranks.rank == 0:
            # Through memory: torch reports a full disk as a RuntimeError of its own.
            content = io.BytesIO()
            torch.save({**state, "ranks": [own for _, own in of_ranks]}, content)
            attempt.before_writing()
            write_whole(self._path(env_steps), seal(content.getvalue()))
            self._recent = [at for at in (*self._recent, begun) if at >= begun - TRANSFER_S]
            kept = KEPT
            if ranks.size > 1 and self._replay is not None:
                kept = len(self._recent) + 1
            self._remove(self._env_steps()[:-kept])
        elif not is_last:  # afterwards rank 0 removes all replay buffers
            self._forget_rows_before(of_ranks[0][0])
        self._saved_at = env_steps
        self._since = time.monotonic()
        attempt.facts.checkpoint_s += self._since - begun

    def drop_replay(self) -> None:
        """Remove what only further training needs, of all ranks in this directory, unless the job
        keeps it: the policy is saved.
        """
        if self._replay is not None and not self._attempt.spec.keep_replay_buffer:
            self._remove(self._env_steps()[:-1])
            for directory in self._directory.glob(f"{REPLAY}*"):
                shutil.rmtree(directory)

    # -- files

    def _remove(self, surplus: Sequence[int]) -> None:
        """Remove checkpoints, and the replay rows that no other one needs."""
        for env_steps in surplus:
            self._path(env_steps).unlink(missing_ok=True)
        self._forget_rows_before(min(self._env_steps(), default=0))

    def _forget_rows_before(self, env_steps: int) -> None:
        if self._replay is not None:
            self._replay.forget_before(env_steps // self._attempt.spec.n_envs)

    def _path(self, env_steps: int) -> Path:
        return self._directory / f"checkpoint-{env_steps:012d}.pt"

    def _env_steps(self) -> list[int]:
        """Return the env_steps of the checkpoints, in ascending order."""
        matches = [CHECKPOINT.fullmatch(path.name) for path in self._directory.iterdir()]
        return sorted(int(match[1]) for match in matches if match)


@contextlib.contextmanager
def explaining_failure(path: Path) -> Iterator[None]:
    """Whatever loading ``path`` raises in the block, except damage, becomes an error that says what
    to do.
    """
    try:
        yield
    except DamagedError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be loaded: {describe(error)}. The file is kept. Correct the cause and queue the job again "
            "with `retry`; to train from the start instead, first remove the folder that it is in"
        ) from error
