"""The training of one job: build, resume, learn, save, evaluate.

:meth:`Training.train` is Stable-Baselines3's ``learn()`` written out (tests prove that it gives the
same bits), with a check for non-finite numbers, a row of timings and, where due, a checkpoint after
every iteration.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    weights,
)
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.checkpoint import Checkpoints
from orchestrator.worker.training.divergences import Divergences
from orchestrator.worker.training.loop_parts import LoopPart, feature_parts
from orchestrator.worker.training.rank_synchronizer import RankSynchronizer
from orchestrator.worker.training.recorder import Recorder
from orchestrator.worker.training.timings import Timings
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
    """
    device = learners.device(spec)
    cuda.prepare_device(device)
    ranks = join(spec.ranks, spec.backend, device, rendezvous, spec.collective_timeout_s)
    before_writing()
    if ranks.rank == 0:
        _remove_partial_files(paths)
    own_envs = own_share(spec.n_envs, ranks)
    venv = env_factory.make(
        spec,
        paths.root,
        n_envs=len(own_envs),
        seed=spec.seed,
        measuring=spec.measure_training,
        first_env=own_envs.start,
        training=True,
    )
    try:
        trained_on = env_factory.normalized_env(spec, venv) if spec.normalize else venv
        learner = learners.build(spec, trained_on, ranks)
        facts.learner = learner.name
        facts.learner_reason = learner.reason
        _say_what_begins(spec, learner, ranks)
        attempt = Attempt(
            spec=spec,
            paths=paths,
            model=learner.model,
            facts=facts,
            reporter=reporter,
            ranks=ranks,
            before_writing=before_writing,
        )
        training = Training(attempt)
        training.train(stop_requested, checkpoint_requested)
        ranks.close()
        facts.weights_sha256 = weights.sha256(attempt.model)
        if ranks.rank == 0:
            after_training.save_policy(attempt)
            training.checkpoints.drop_replay()
            if spec.eval_episodes:
                after_training.evaluate(attempt, stop_requested)
    finally:
        venv.close()


def _remove_partial_files(paths: JobPaths) -> None:
    """Remove what an earlier attempt was writing when it was killed."""
    tables = (paths.progress_csv, paths.timings_csv)
    for path in (*tables, paths.model, paths.vecnormalize, paths.eval, paths.moment):
        remove_partial_files(path.parent, path.name)


def _say_what_begins(spec: WorkerSpec, learner: learners.Learner, ranks: Ranks) -> None:
    say(f"{spec.job_id}: {spec.algo}, learner {learner.name} ({learner.reason}), seed {spec.seed}")
    cpus = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
    say(f"{spec.n_envs} environments, threads = {spec.threads} on CPU {cpus}")
    if ranks.size > 1:
        say(f"rank {ranks.rank} of {ranks.size}, {spec.mode}")


class Training:
    """The loop. An iteration is a rollout with its update, then what its parts do, a row of the log
    and, where due, a checkpoint.
    """

    def __init__(self, attempt: Attempt) -> None:
        spec = attempt.spec
        model = attempt.model
        ranks = attempt.ranks
        assert model.env is not None
        self._attempt = attempt
        self._model = model
        self.checkpoints = Checkpoints(attempt)
        loop = self.checkpoints.resume()
        self._iteration = loop.iteration
        self._log = TrainingLog(attempt, loop)
        self._recorder = Recorder(model.env, self._log.after_step, measuring=spec.measure_training)
        self._divergences = Divergences(self._recorder, attempt, loop)
        shared: list[LoopPart] = []
        if ranks.size > 1:
            has_server = spec.mode == "parameter-server"
            shared.append(RankSynchronizer(model, ranks, parameter_server=has_server))
        self._features = feature_parts(spec, model, loop.parts)
        # Ranks come last, so that features find the latest episodes when an iteration begins: they
        # are set aside during a rollout.
        self._parts = [*self._features.values(), *shared]
        if spec.on_divergence == "end-episode":
            self._parts.insert(0, self._divergences)
        self._log.tell_of_features(self._facts_of_features())
        columns = [column for part in self._parts for column in part.columns]
        self._log.open(columns, keep=loop.progress_rows)
        # Resets the environments, unless restoring has put them in the midst of their episodes.
        self._callback = sb3_internals.setup_learn(
            model,
            spec.total_timesteps - model.num_timesteps,
            reset_num_timesteps=attempt.facts.resumed_from is None,
        )
        self._timings = Timings(
            attempt.paths.timings_csv, model, self._recorder, ranks, keep=loop.timings_rows
        )
        for part in self._parts:
            part.start()

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
            self._write_rows()
            is_due = checkpoint_requested() or self.checkpoints.is_due(steps_before)
            self._act_together(is_stopping=stop_requested(), is_saving=is_due)
        self._save_where_unsaved()
        self._attempt.reporter.is_urgent = True
        self._log.report()

    def _pause_at_rung(self) -> None:
        """End the attempt where it is to be compared with others; also one that resumes there.

        :raises ReachedRung: it is; there is a checkpoint.
        """
        steps = self._model.num_timesteps
        rung = self._attempt.spec.pause_at
        if rung is not None and steps >= rung:
            self._save_where_unsaved()
            raise ReachedRung(f"reached {steps:,} env_steps, where it is compared with others")

    def _begin_iteration(self) -> None:
        self._iteration += 1
        self._timings.begin_iteration()
        share = self._model.num_timesteps / self._attempt.spec.total_timesteps
        moment = TrainingMoment(share, stage=1)
        for part in self._parts:
            moment = part.begin_iteration(moment)
        assert self._model.env is not None
        venv = self._model.env.unwrapped
        if isinstance(venv, MujocoVecEnv):
            venv.move(moment)

    def _learn(self) -> None:
        """Rollouts, each with its update, for as many env_steps as an iteration has; with PPO it is
        one rollout.
        """
        model = self._model
        ranks = self._attempt.ranks.size
        total = self._attempt.spec.total_timesteps
        end = min(total, model.num_timesteps + self._attempt.spec.steps_an_iteration)
        while model.num_timesteps < end:
            steps_before = model.num_timesteps
            algorithms.collect(model, self._recorder, self._callback)
            own_steps = model.num_timesteps - steps_before
            steps = own_steps * ranks
            model.num_timesteps = steps_before + steps
            nan_guard.check_rollout(model, own_steps // model.n_envs)
            self._timings.end_phase("rollout_s")
            algorithms.update(model, steps, total)
            nan_guard.check_losses(model)
            self._timings.end_phase("train_s")
        nan_guard.check_parameters(model)
        self._timings.end_phase("train_s")

    def _write_rows(self) -> None:
        for part in self._parts:
            part.after_update(self._iteration)
        for part in self._parts:
            part.before_row()
        self._log.write_row(self._iteration)
        self._timings.write_row(self._iteration)

    def _act_together(self, *, is_stopping: bool, is_saving: bool) -> None:
        """What is due on any rank, all do.

        :raises Interrupted: one is to stop; there is a checkpoint.
        """
        row = self._log.latest_row
        are_due = [part.is_due(row) for part in self._parts]
        stopping, saving, *are_due = self._attempt.ranks.any(is_stopping, is_saving, *are_due)
        reporter = self._attempt.reporter
        for part, is_due in zip(self._parts, are_due, strict=True):
            if is_due:
                part.act()
                reporter.is_urgent = True
        self._log.tell_of_features(self._facts_of_features())
        if reporter.is_urgent:
            self._log.report()
        if stopping or saving:
            self._save_checkpoint()
        if stopping:
            raise Interrupted(
                f"stopped on request; the checkpoint at {self._model.num_timesteps} env_steps stands"
            )

    def _facts_of_features(self) -> dict[str, Any]:
        """Return what is told of those features that tell anything, by name."""
        told = {name: part.facts for name, part in self._features.items()}
        return {name: facts for name, facts in told.items() if facts is not None}

    def _save_where_unsaved(self) -> None:
        if not self.checkpoints.is_newest_of_now:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        facts = self._attempt.facts
        loop = LoopState(
            iteration=self._iteration,
            progress_rows=self._log.rows,
            timings_rows=self._timings.rows,
            ep_rew_mean_first=facts.ep_rew_mean_first,
            training_s=self._log.training_s(),
            divergences=self._divergences.total,
            recent_episodes=tuple(self._divergences.recent),
            parts=self._facts_of_features(),
        )
        self.checkpoints.save(loop)
