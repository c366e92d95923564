"""Which checkpoint an attempt resumes from, and when the next one is written. What a checkpoint
holds is in :mod:`.training_state`, and its file in :mod:`.checkpoint`.
"""

from __future__ import annotations

import time
from typing import Any

from orchestrator.core.worker_spec import is_algorithm_class
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import asymmetric_critic, replay, training_state
from orchestrator.worker.training.algorithms import OffPolicy
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.checkpoint import CheckpointStore, explaining_failure
from orchestrator.worker.training.training_state import LoopState


class Checkpointing:
    """The checkpoints of one training."""

    def __init__(self, attempt: Attempt) -> None:
        spec = attempt.spec
        model = attempt.model
        self._attempt = attempt
        attempt.before_writing()
        self._replay: replay.Replay | None = None
        if isinstance(model, OffPolicy) and replay.is_known(model.replay_buffer):
            assert model.replay_buffer is not None
            directory = attempt.paths.replay(attempt.ranks.rank)
            self._replay = replay.Replay(directory, model.replay_buffer)
        if is_algorithm_class(spec.algo):
            say(
                f"{spec.algo} resumes with its policy, optimizers, counters and a plain replay buffer; "
                "its other attributes begin anew"
            )
        self._store = CheckpointStore(
            attempt.paths.checkpoints,
            spec.fingerprint(),
            self._replay,
            spec.n_envs,
            attempt.before_writing,
            earlier=[spec.fingerprint(total) for total in spec.extended_from],
        )
        self._saved_at: int | None = None
        """env_steps of the newest one."""
        self._since = time.monotonic()
        """When this attempt has written one, by the monotonic clock; before that, when it began."""

    def resume(self) -> LoopState:
        """Bring the model to the state of the newest whole checkpoint; without one, to the policy
        that it starts from.

        :raises CheckpointError: it cannot be loaded. :raises ValueError: it is of another spec.
        """
        attempt = self._attempt
        state = self._store.newest(attempt.ranks)
        if state is None:
            loop = LoopState()
            self._start_from_policy()
        else:
            loop = self._restore(state)
        if self._store.problems:
            went_on = f"the training starts at {attempt.model.num_timesteps} env_steps"
            attempt.reporter.warning = "; ".join([*self._store.problems, went_on])
            say(went_on)
        self._saved_at = attempt.facts.resumed_from
        self._since = time.monotonic()
        return loop

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

    def _restore(self, state: dict[str, Any]) -> LoopState:
        model = self._attempt.model
        facts = self._attempt.facts
        with explaining_failure(self._store.path(state["env_steps"])):
            is_unfinished = state["env_steps"] < self._attempt.spec.total_timesteps
            if self._replay is not None and "rows" not in state and is_unfinished:
                raise ValueError(
                    "it has no replay buffer, as it was the last of a training, which now goes on"
                )
            loop = training_state.restore(model, state)
        facts.resumed_from = model.num_timesteps
        say(f"resumed at {model.num_timesteps} env_steps")
        return loop

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
        """Write a checkpoint; all ranks call it. :raises OSError: it cannot be written."""
        attempt = self._attempt
        begun = time.monotonic()
        state = training_state.capture(attempt.model, loop)
        attempt.facts.unsaveable = state["unsaveable"] or None
        env_steps = attempt.model.num_timesteps
        is_last = attempt.is_trained and not attempt.spec.keep_replay_buffer
        self._store.save(env_steps, state, attempt.ranks, is_last=is_last)
        self._saved_at = env_steps
        self._since = time.monotonic()
        attempt.facts.checkpoint_s += self._since - begun

    def drop_replay(self) -> None:
        """Remove the replay buffers, unless the job keeps them: the policy is saved."""
        if not self._attempt.spec.keep_replay_buffer:
            self._store.drop_replay()
