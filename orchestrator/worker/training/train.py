"""The training of one job: build, resume, learn, save, evaluate.

:meth:`Training.train` is Stable-Baselines3's ``learn()`` written out (tests prove that it gives the
same bits), with a check for non-finite numbers, a row of timings and, where due, a checkpoint after
every iteration.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.files.atomic_files import remove_partial_files
from orchestrator.core.numbers.changing_numbers import TrainingMoment
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.ranks.process_group import join
from orchestrator.worker.ranks.ranks import Ranks, own_share
from orchestrator.worker.runtime import cuda, sb3_internals
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.failures import Interrupted, ReachedRung
from orchestrator.worker.runtime.progress import ProgressReporter, say
from orchestrator.worker.training import (
    after_training,
    algorithms,
    learners,
    nan_guard,
    timings,
    weights,
)
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.checkpoint_part import Checkpointing
from orchestrator.worker.training.divergences import DivergenceCounter, Divergences
from orchestrator.worker.training.loop_parts import LoopPart, LoopParts, feature_parts
from orchestrator.worker.training.measured_episodes import MeasuredEpisodes
from orchestrator.worker.training.rank_synchronizer import RankSynchronizer
from orchestrator.worker.training.timings import DisabledTimings, TimedVecEnv, Timings
from orchestrator.worker.training.training_log import TrainingLog
from orchestrator.worker.training.training_state import LoopState


def run(
    spec: WorkerSpec,
    paths: JobPaths,
    facts: AttemptFacts,
    reporter: ProgressReporter,
    stop_requested: Callable[[], bool],
    rendezvous: Path,
    before_writing: Callable[[], object] = lambda: None,
    checkpoint_requested: Callable[[], bool] = lambda: False,
) -> None:
    """Train to the end, save the policy, evaluate it. All ranks train, and rank 0 does the rest.

    :param stop_requested: asked at every iteration boundary; all ranks stop together.
    :param rendezvous: file over which the ranks of an attempt find each other
        (:func:`orchestrator.worker.ranks.process_group.join`).
    :param before_writing: called before anything in the job's directory changes.
    :param checkpoint_requested: asked at every iteration boundary; if it is true on any rank, all
        write a checkpoint.
    :raises Interrupted: it stopped on request, at a whole checkpoint.
    :raises ReachedRung: it has come to :attr:`WorkerSpec.pause_at`, and has a whole checkpoint
        there.
    :raises RankLostError: another rank is gone.
    :raises Diverged: a number is not finite; the last checkpoint is from before.
    :raises OSError: a file cannot be read or written.
    :raises GpuMemoryError: the GPU, or the share of it that the job has, has no memory left.
    """
    device = learners.device(spec)
    with cuda.prepare_device(device):
        ranks = join(spec.ranks, spec.backend, device, rendezvous, spec.collective_timeout_s)
        before_writing()
        if ranks.rank == 0:
            _remove_partial_files(paths)
        env_indices = own_share(spec.n_envs, ranks)
        venv = _environments(spec, paths, env_indices)
        try:
            trained_on = env_factory.normalized_env(spec, venv) if spec.normalize else venv
            learner = learners.build(spec, trained_on, ranks)
            facts.learner = learner.name
            facts.learner_reason = learner.reason
            reporter.learner = learner.name
            _say_what_begins(spec, learner, ranks, env_indices)
            attempt = Attempt(
                spec=spec,
                paths=paths,
                model=learner.model,
                facts=facts,
                reporter=reporter,
                ranks=ranks,
                before_writing=before_writing,
            )
            _complete(attempt, stop_requested, checkpoint_requested)
        finally:
            venv.close()


def _complete(
    attempt: Attempt,
    stop_requested: Callable[[], bool],
    checkpoint_requested: Callable[[], bool],
) -> None:
    """Train, save the policy and evaluate it."""
    training = Training(attempt)
    training.train(stop_requested, checkpoint_requested)
    attempt.ranks.close()
    attempt.facts.weights_sha256 = weights.sha256(attempt.model)
    if attempt.ranks.rank > 0:
        return
    after_training.save_policy(attempt)
    training.drop_replay()
    if attempt.spec.eval_episodes:
        after_training.evaluate(attempt, stop_requested)


def _remove_partial_files(paths: JobPaths) -> None:
    """Remove what an earlier attempt was writing when it was killed."""
    tables = (paths.progress_csv, paths.timings_csv)
    for path in (*tables, paths.model, paths.vecnormalize, paths.eval, paths.moment):
        remove_partial_files(path.parent, path.name)


def _environments(spec: WorkerSpec, paths: JobPaths, env_indices: range) -> VecEnv:
    """The environments of this rank, not normalised."""
    return env_factory.make(
        spec,
        paths.root,
        n_envs=len(env_indices),
        seed=spec.seed,
        measuring=spec.measure_training,
        first_env=env_indices.start,
        training=True,
    )


def _say_what_begins(
    spec: WorkerSpec, learner: learners.Learner, ranks: Ranks, env_indices: range
) -> None:
    cpus = "any"
    if hasattr(os, "sched_getaffinity"):
        cpus = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
    say(f"{spec.job_id}: {spec.algo}, learner {learner.name} ({learner.reason})")
    say(f"seed {spec.seed}, {spec.n_envs} environments, threads = {spec.threads} on CPU {cpus}")
    if ranks.size > 1:
        first = env_indices.start
        last = env_indices.stop - 1
        say(f"rank {ranks.rank} of {ranks.size}: environments {first} to {last}, {spec.mode}")


class Training:
    """The loop. An iteration is a rollout with its update, then what its parts do, a row of the log
    and, where due, a checkpoint.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._model = attempt.model
        self._checkpoints = Checkpointing(attempt)
        loop = self._checkpoints.resume()
        self._iteration = loop.iteration
        self._log = TrainingLog(attempt, loop)
        equipment = _equip(attempt, loop, self._log)
        self._parts = equipment.parts
        self._timings = equipment.timings
        self._env = equipment.env
        self._log.tell_of_features(self._parts.facts)
        self._log.open(self._parts.columns, keep=loop.progress_rows)
        self._callback = _begin_episodes(attempt)
        self._parts.start()

    def train(
        self,
        stop_requested: Callable[[], bool],
        checkpoint_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """``learn()`` up to ``total_timesteps``; the last checkpoint is that of the trained
        policy.
        """
        while not self._attempt.is_trained:
            self._pause_at_rung()
            steps_before = self._model.num_timesteps
            self._begin_iteration()
            with nan_guard.explaining_divergence(self._model, self._iteration):
                self._learn()
            self._end_iteration()
            is_due = checkpoint_requested() or self._checkpoints.is_due(steps_before)
            self._act_together(is_stopping=stop_requested(), is_saving=is_due)
        self._save_where_unsaved()
        self._parts.finish()
        self._attempt.reporter.report("training", self._model.num_timesteps, last=True)

    def _pause_at_rung(self) -> None:
        """End the attempt where it is to be compared with others.

        :raises ReachedRung: it is; there is a checkpoint.
        """
        if self._checkpoints.is_at_rung:
            self._save_where_unsaved()
            steps = self._model.num_timesteps
            raise ReachedRung(f"reached {steps:,} env_steps, where it is compared with others")

    def _begin_iteration(self) -> None:
        self._iteration += 1
        share = self._model.num_timesteps / self._attempt.spec.total_timesteps
        moment = self._parts.begin_iteration(TrainingMoment(share, stage=1))
        assert self._model.env is not None
        venv = self._model.env.unwrapped
        if isinstance(venv, MujocoVecEnv):
            venv.move(moment)

    def _learn(self) -> None:
        """Rollouts, each with its update, for as many env_steps as an iteration has; with PPO it is
        one rollout.
        """
        model = self._model
        clock = self._timings
        ranks = self._attempt.ranks.size
        total = self._attempt.spec.total_timesteps
        end = min(total, model.num_timesteps + self._attempt.spec.steps_an_iteration)
        while model.num_timesteps < end:
            steps_before = model.num_timesteps
            algorithms.collect(model, self._env, self._callback)
            own_steps = model.num_timesteps - steps_before
            steps = own_steps * ranks
            model.num_timesteps = steps_before + steps
            nan_guard.check_rollout(model, own_steps // model.n_envs)
            clock.phase_done("rollout_s")
            algorithms.update(model, steps, total)
            nan_guard.check_losses(model)
            clock.phase_done("train_s")
        nan_guard.check_parameters(model)
        clock.phase_done("train_s")

    def _end_iteration(self) -> None:
        """Write the iteration's rows, and what parts do before and after.

        :raises Diverged: physics has diverged too often.
        """
        self._parts.after_update(self._iteration)
        self._parts.before_row()
        self._log.write_row(self._iteration)
        self._parts.after_row(self._iteration)

    def _act_together(self, *, is_stopping: bool, is_saving: bool) -> None:
        """What is due on any rank, all do.

        :raises Interrupted: one is to stop; there is a checkpoint.
        """
        stopping, saving, *parts_due = self._attempt.ranks.any(
            is_stopping, is_saving, *self._parts.are_due(self._log.latest_row)
        )
        reporter = self._attempt.reporter
        if any(parts_due):
            self._parts.act(parts_due)
            reporter.is_urgent = True
        self._log.tell_of_features(self._parts.facts)
        if reporter.is_urgent:
            self._log.report()
        if stopping or saving:
            self._save_checkpoint()
        if stopping:
            raise Interrupted(
                f"stopped on request; the checkpoint at {self._model.num_timesteps} env_steps stands"
            )

    def _save_where_unsaved(self) -> None:
        if not self._checkpoints.is_newest_of_now:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        loop = LoopState(
            iteration=self._iteration,
            learner=self._attempt.facts.learner,
            parts=self._parts.facts,
            **self._log.saved(),
            **self._parts.saved(),
        )
        self._checkpoints.save(loop)
        self._log.leave_out_checkpoint()

    def drop_replay(self) -> None:
        """Remove what only further training needs, unless the job keeps it: the policy is saved."""
        self._checkpoints.drop_replay()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Equipment:
    parts: LoopParts
    timings: Timings | DisabledTimings
    """One of them, which is also told of the end of every rollout and update."""
    env: TimedVecEnv
    """What rollouts are collected from."""


def _equip(attempt: Attempt, loop: LoopState, log: TrainingLog) -> _Equipment:
    """Make the parts of the loop, in their order, and put what counts and measures around the
    environments.

    Timings come first, so that they measure all of an iteration and its row stands before
    divergences may end the training. Ranks come last, so that features find the latest episodes
    when an iteration begins: they are set aside during a rollout.
    """
    spec = attempt.spec
    model = attempt.model
    ranks = attempt.ranks
    shared: list[LoopPart] = []
    if ranks.size > 1:
        has_server = spec.mode == "parameter-server"
        shared.append(RankSynchronizer(model, ranks, parameter_server=has_server))
    features = feature_parts(spec, model, loop.parts)
    assert model.env is not None
    venv: VecEnv = model.env
    if spec.measure_training:
        venv = MeasuredEpisodes(venv)
    divergences: list[LoopPart] = []
    if spec.on_divergence == "end-episode":
        counter = DivergenceCounter(venv)
        divergences.append(Divergences(counter, model, ranks, attempt.facts, loop))
        venv = counter
    env = TimedVecEnv(venv, log.after_step)
    clock = timings.make(attempt.paths.timings_csv, model, env, ranks, keep=loop.timings_rows)
    parts = LoopParts([clock, *divergences, *features.values(), *shared], features)
    return _Equipment(parts=parts, timings=clock, env=env)


def _begin_episodes(attempt: Attempt) -> BaseCallback:
    """Reset the environments, unless restoring has put them in the midst of their episodes."""
    steps_left = attempt.spec.total_timesteps - attempt.model.num_timesteps
    is_resumed = attempt.facts.resumed_from is not None
    return sb3_internals.setup_learn(attempt.model, steps_left, reset_num_timesteps=not is_resumed)
