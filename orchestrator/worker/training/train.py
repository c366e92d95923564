"""The training of one job: build, resume, learn, save, evaluate.

:meth:`Training.train` is Stable-Baselines3's ``learn()`` written out (tests prove that it gives the
same bits), with a check for non-finite numbers, a row of timings and, where due, a checkpoint after
every iteration.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.atomic_files import remove_partial_files, write_whole
from orchestrator.core.changing_numbers import TrainingMoment
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import count, joined
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.distributed.process_group import join
from orchestrator.worker.distributed.ranks import Ranks, own_share
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.vec_env import MujocoVecEnv
from orchestrator.worker.runtime import csv_tables, cuda, sb3_internals
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.csv_tables import CsvTable, LoggerTable
from orchestrator.worker.runtime.failures import Interrupted, ReachedRung
from orchestrator.worker.runtime.progress import ProgressReporter, say
from orchestrator.worker.training import (
    algorithms,
    asymmetric_critic,
    evaluation,
    learners,
    nan_guard,
    timings,
    training_state,
    weights,
)
from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.checkpoint import CheckpointStore, explaining_failure
from orchestrator.worker.training.divergences import COLUMN, DivergenceCounter
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.loop_parts import LoopParts
from orchestrator.worker.training.replay import Replay
from orchestrator.worker.training.shared_statistics import RankSynchronizer
from orchestrator.worker.training.timings import TimedVecEnv
from orchestrator.worker.training.training_state import LoopState

LOG_INTERVAL_S = 10.0
"""Between lines on the progress of training in ``worker.log``."""


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
        (:func:`orchestrator.worker.distributed.process_group.join`).
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
    with cuda.prepared(device):
        ranks = join(spec.ranks, spec.backend, device, rendezvous, spec.collective_timeout_s)
        before_writing()
        if ranks.rank == 0:
            _remove_what_was_half_written(paths)
        env_indices = own_share(spec.n_envs, ranks)
        venv = _environments(spec, paths, env_indices)
        try:
            learner = learners.build(
                spec, env_factory.normalized(spec, venv) if spec.normalize else venv, ranks
            )
            facts.learner = reporter.learner = learner.name
            facts.learner_reason = learner.reason
            _say_what_begins(spec, learner, ranks, env_indices)
            training = Training(spec, paths, learner.model, facts, reporter, ranks, before_writing)
            training.train(stop_requested, checkpoint_requested)
            ranks.close()
            facts.weights_sha256 = weights.sha256(learner.model)
            if ranks.rank > 0:
                return
            training.save_policy()
            if spec.eval_episodes:
                training.evaluate(stop_requested)
        finally:
            venv.close()


def _remove_what_was_half_written(paths: JobPaths) -> None:
    """What an earlier attempt was writing when it was killed."""
    tables = (paths.progress_csv, paths.timings_csv)
    for path in (*tables, paths.model, paths.vecnormalize, paths.eval, paths.moment):
        remove_partial_files(path.parent, path.name)


def _environments(spec: WorkerSpec, paths: JobPaths, env_indices: range) -> VecEnv:
    """Those of this rank."""
    return env_factory.make(
        spec,
        paths.root,
        n_envs=len(env_indices),
        seed=spec.seed,
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
        first, last = env_indices.start, env_indices.stop - 1
        say(f"rank {ranks.rank} of {ranks.size}: environments {first} to {last}, {spec.mode}")


class Training:
    """The loop, and its state from iteration to iteration and from attempt to attempt."""

    def __init__(
        self,
        spec: WorkerSpec,
        paths: JobPaths,
        model: Model,
        facts: AttemptFacts,
        reporter: ProgressReporter,
        ranks: Ranks,
        before_writing: Callable[[], object] = lambda: None,
    ) -> None:
        self._spec, self._paths, self._model = spec, paths, model
        self._facts, self._reporter = facts, reporter
        self._ranks, self._before_writing = ranks, before_writing
        before_writing()
        replay = _replay(paths, model, spec, ranks)
        self._store = CheckpointStore(
            paths.checkpoints,
            spec.fingerprint(),
            replay,
            spec.n_envs,
            before_writing,
            earlier=[spec.fingerprint(total) for total in spec.extended_from],
        )
        state = self._store.newest(ranks)
        loop = self._resumed(state, replay)
        if ranks.rank == 0:
            warning = self._warning_about_checkpoints(resumed=state is not None)
            reporter.warning = warning or reporter.warning
        self._synchronizer = RankSynchronizer(
            model, ranks, parameter_server=spec.mode == "parameter-server"
        )
        facts.env_steps = model.num_timesteps
        facts.ep_rew_mean_first, facts.ep_rew_mean = loop.ep_rew_mean_first, self._mean_return()
        self._iteration = loop.iteration
        self._saved_at = facts.resumed_from
        self._iteration_began = self._checkpointed_at = time.monotonic()
        self._began = self._iteration_began - loop.training_s
        self._next_line = self._iteration_began
        self._parts = LoopParts(spec, model, loop.parts)
        self._tell_of_parts()
        self._progress = self._progress_table(loop)
        # Resets the environments, unless restoring has put them in the middle of their episodes.
        steps_left = spec.total_timesteps - model.num_timesteps
        self._callback = sb3_internals.setup_learn(
            model, steps_left, reset_num_timesteps=state is None
        )
        assert model.env is not None
        self._divergences: DivergenceCounter | None = None
        if _ends_episodes(spec):
            self._divergences = DivergenceCounter(model.env, ranks, loop)
            facts.divergences = loop.divergences
        self._env = TimedVecEnv(
            model.env if self._divergences is None else self._divergences, self._after_step
        )
        self._report_during_updates()
        self._timings = timings.start(
            paths.timings_csv, model, self._env, ranks, keep=loop.timings_rows
        )
        self._synchronizer.start()

    def _resumed(self, state: dict[str, Any] | None, replay: Replay | None) -> LoopState:
        """Bring the model to the state of a checkpoint, or to the policy that it starts from."""
        spec, model = self._spec, self._model
        if state is None:
            if spec.init_sha256 is not None:
                _start_from(self._paths.init, spec, model)
            return LoopState()
        with explaining_failure(self._store.path(state["env_steps"])):
            is_unfinished = state["env_steps"] < spec.total_timesteps
            if replay is not None and "rows" not in state and is_unfinished:
                raise ValueError(
                    "it has no replay buffer, as it was the last of a training, which now goes on"
                )
            loop = training_state.restore(model, state, self._ranks.rank)
        self._facts.resumed_from = model.num_timesteps
        say(f"resumed at {model.num_timesteps} env_steps")
        if loop.learner != self._facts.learner:
            say(
                f"learner {loop.learner} trained it so far: the same algorithm, but not the same bits from here on"
            )
        return loop

    def _progress_table(self, loop: LoopState) -> LoggerTable | None:
        """``progress.csv``, to which the model logs from now on; None on ranks that write none."""
        table, outputs = None, list[KVWriter]()
        if self._ranks.rank == 0:
            columns = [
                *learners.logged_columns(self._model),
                *[COLUMN] * _ends_episodes(self._spec),
                *self._parts.columns,
            ]
            rows = CsvTable(self._paths.progress_csv, keep=loop.progress_rows, columns=columns)
            table = LoggerTable(rows)
            outputs = [table]
        self._model.set_logger(Logger(folder=None, output_formats=outputs))
        return table

    def _report_during_updates(self) -> None:
        """A long update must report progress, too, or the supervisor would take it for a stall."""
        if isinstance(self._model, FastPPO):
            self._model.each_minibatch = self._report  # type: ignore[method-assign]
        else:
            for optimizer in algorithms.optimizers(self._model).values():
                optimizer.register_step_post_hook(lambda *_: self._report())

    def train(
        self,
        stop_requested: Callable[[], bool],
        checkpoint_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """``learn()`` up to ``total_timesteps``; the last checkpoint is that of the trained
        policy.
        """
        model, total = self._model, self._spec.total_timesteps
        while model.num_timesteps < total:
            self._pause_at_rung()
            steps_before = model.num_timesteps
            self._begin_iteration()
            with nan_guard.explaining_divergence(model, self._iteration):
                self._learn(min(total, steps_before + self._spec.steps_an_iteration))
            self._end_iteration()
            is_due = checkpoint_requested() or self._is_checkpoint_due(steps_before)
            self._act_together(is_stopping=stop_requested(), is_saving=is_due)
        if self._saved_at != model.num_timesteps:
            self._save_checkpoint()
        self._timings.stop()
        self._reporter.report("training", model.num_timesteps, last=True)

    def _begin_iteration(self) -> None:
        self._iteration += 1
        self._timings.begin()
        share = self._model.num_timesteps / self._spec.total_timesteps
        moment = self._parts.begin_iteration(TrainingMoment(share, stage=1))
        assert self._model.env is not None
        venv = self._model.env.unwrapped
        if isinstance(venv, MujocoVecEnv):
            venv.move(moment)
        self._synchronizer.begin_iteration()

    def _end_iteration(self) -> None:
        """:raises Diverged: physics has diverged too often."""
        self._synchronizer.end_iteration(self._iteration)
        self._count_divergences()
        self._parts.before_row()
        self._log()
        self._timings.end(self._iteration, self._model.num_timesteps)
        if self._divergences is not None:
            self._divergences.check(self._iteration, self._model.num_timesteps)

    def _act_together(self, *, is_stopping: bool, is_saving: bool) -> None:
        """What is due on any rank, all do.

        :raises Interrupted: one is to stop; there is a checkpoint.
        """
        row = self._progress.latest if self._progress else {}
        stopping, saving, *parts_due = self._ranks.any(
            is_stopping, is_saving, *self._parts.are_due(row)
        )
        if any(parts_due):
            self._parts.act(parts_due)
            self._reporter.is_urgent = True
        self._tell_of_parts()
        if self._reporter.is_urgent:
            self._report()
        if stopping or saving:
            self._save_checkpoint()
        if stopping:
            raise Interrupted(
                f"stopped on request; the checkpoint at {self._model.num_timesteps} env_steps stands"
            )

    def _tell_of_parts(self) -> None:
        self._facts.parts = self._reporter.parts = self._parts.facts

    def _pause_at_rung(self) -> None:
        """:raises ReachedRung: on all ranks, which have the same env_steps; also in an attempt that
        resumes there.
        """
        rung, steps = self._spec.pause_at, self._model.num_timesteps
        if rung is None or steps < rung:
            return
        if self._saved_at != steps:
            self._save_checkpoint()
        raise ReachedRung(f"reached {steps:,} env_steps, where it is compared with others")

    def _is_checkpoint_due(self, steps_before: int) -> bool:
        """By the interval of the job. By time, rank 0 decides for all; env_steps are the same on
        every rank.
        """
        every, every_s = self._spec.checkpoint_every, self._spec.checkpoint_every_s
        if every_s is not None:
            return self._ranks.rank == 0 and time.monotonic() - self._checkpointed_at >= every_s
        return every is not None and self._model.num_timesteps // every > steps_before // every

    def _learn(self, end: int) -> None:
        """Rollouts, each with its update, up to ``end`` env_steps of the training; with PPO it is
        one rollout.
        """
        model, clock = self._model, self._timings
        while model.num_timesteps < end:
            steps_before = model.num_timesteps
            algorithms.collect(model, self._env, self._callback)
            own_steps = model.num_timesteps - steps_before
            steps = own_steps * self._ranks.size
            model.num_timesteps = steps_before + steps
            nan_guard.check_rollout(model, own_steps // model.n_envs)
            clock.phase_done("rollout_s")
            algorithms.update(model, steps, self._spec.total_timesteps)
            nan_guard.check_losses(model)
            clock.phase_done("train_s")
        nan_guard.check_parameters(model)
        clock.phase_done("train_s")

    def _count_divergences(self) -> None:
        if self._divergences is not None:
            self._model.logger.record(COLUMN, self._divergences.end_iteration())
            self._facts.divergences = self._divergences.total

    def _log(self) -> None:
        """Write a row of ``progress.csv``, after the update, so that a row holds what belongs to
        one iteration.
        """
        model, facts, reporter = self._model, self._facts, self._reporter
        self._before_writing()
        # From the monotonic clock: a wall clock set back would break SB3's division.
        model.start_time = time.time_ns() - int(self._training_s() * 1e9)
        algorithms.dump_logs(model, self._iteration)
        now = time.monotonic()
        reporter.env_steps_per_s = (model.num_timesteps - facts.env_steps) / (
            now - self._iteration_began
        )
        self._iteration_began = now
        facts.env_steps = model.num_timesteps
        facts.ep_rew_mean = self._mean_return()
        facts.ep_rew_mean_first = (
            facts.ep_rew_mean if facts.ep_rew_mean_first is None else facts.ep_rew_mean_first
        )
        reporter.iteration, reporter.ep_rew_mean = self._iteration, facts.ep_rew_mean
        self._report()
        if now >= self._next_line or model.num_timesteps >= self._spec.total_timesteps:
            self._next_line = now + LOG_INTERVAL_S
            mean = (
                "no episode ended yet"
                if facts.ep_rew_mean is None
                else f"ep_rew_mean {facts.ep_rew_mean:,.1f}"
            )
            done = f"{model.num_timesteps:,} of {self._spec.total_timesteps:,} env_steps"
            diverged = f", {count(facts.divergences, 'divergence')}" if facts.divergences else ""
            say(f"{done}, {mean}, {reporter.env_steps_per_s:,.0f} env_steps/s{diverged}")

    def _mean_return(self) -> float | None:
        """``rollout/ep_rew_mean``: None before the first episode has ended."""
        mean = safe_mean([episode["r"] for episode in self._model.ep_info_buffer or ()])
        return None if math.isnan(mean) else float(mean)

    def _after_step(self) -> None:
        if self._facts.first_step_s is None:
            self._facts.first_step_s = self._facts.age_s()
        self._report()

    def _report(self) -> None:
        self._reporter.report("training", self._model.num_timesteps)

    def _warning_about_checkpoints(self, *, resumed: bool) -> str:
        """Which checkpoints were damaged, and what follows. A training that starts over keeps its
        earlier tables.
        """
        problems = list(self._store.problems)
        if resumed and problems:
            problems.append(f"resumed at {self._model.num_timesteps} env_steps")
        elif not resumed and (damaged := self._store.damaged()):
            tables = [
                csv_tables.set_aside(table)
                for table in (self._paths.progress_csv, self._paths.timings_csv)
            ]
            kept = joined(table.name for table in tables if table is not None)
            problems = problems or [
                f"only damaged checkpoints are there ({joined(path.name for path in damaged)})"
            ]
            problems.append("no checkpoint is left, so the training starts at 0 env_steps")
            problems += [f"its earlier tables are kept as {kept}"] if kept else []
            say("; ".join(problems))
        return "; ".join(problems)

    def _save_checkpoint(self) -> None:
        begun = time.monotonic()
        loop = LoopState(
            iteration=self._iteration,
            learner=self._facts.learner,
            progress_rows=0 if self._progress is None else self._progress.table.rows,
            timings_rows=self._timings.rows,
            ep_rew_mean_first=self._facts.ep_rew_mean_first,
            training_s=self._training_s(),
            parts=self._parts.facts,
            **({} if self._divergences is None else self._divergences.saved()),
        )
        state = training_state.capture(self._model, loop)
        self._facts.unsaveable = state["unsaveable"] or None
        is_last = (
            self._model.num_timesteps >= self._spec.total_timesteps
            and not self._spec.keep_replay_buffer
        )
        self._store.save(self._model.num_timesteps, state, self._ranks, is_last=is_last)
        self._saved_at = self._model.num_timesteps
        self._iteration_began = self._checkpointed_at = time.monotonic()
        self._facts.checkpoint_s += self._iteration_began - begun

    def _training_s(self) -> float:
        return time.monotonic() - self._began

    def save_policy(self) -> None:
        """Write ``model.zip`` and, with normalisation, ``vecnormalize.pkl``; both load without this
        package.
        """
        content = io.BytesIO()
        self._model.save(content)
        self._before_writing()
        for path in (
            self._paths.eval,
            self._paths.moment,
            self._paths.preview,
        ):  # of a shorter training
            path.unlink(missing_ok=True)
        write_whole(self._paths.model, content.getvalue())
        normalization = self._model.get_vec_normalize_env()
        if normalization is not None:
            write_whole(self._paths.vecnormalize, pickle.dumps(normalization))
        if not self._spec.keep_replay_buffer:
            self._store.drop_replay()

    def evaluate(self, stop_requested: Callable[[], bool]) -> None:
        """Evaluate the policy and write ``eval.json``."""

        def each_step() -> None:
            self._reporter.report("evaluating", self._model.num_timesteps)
            if stop_requested():
                raise Interrupted(
                    "stopped on request during evaluation; the policy is trained and saved"
                )

        begun = time.monotonic()
        try:
            result = evaluation.evaluate(self._spec, self._paths.root, self._model, each_step)
        finally:
            self._facts.eval_s = (
                time.monotonic() - begun
            )  # also of one that is stopped: no training
        self._before_writing()
        if result.moment is not None:
            write_whole(self._paths.moment, result.moment, durable=False)
        write_whole(self._paths.eval, result.to_json())
        deterministic = result.deterministic.summary
        self._facts.eval_mean = deterministic["mean"]
        self._facts.measures = {
            name: measure["mean"] for name, measure in deterministic["measures"].items()
        }
        say(f"evaluated over {result}")


def _start_from(path: Path, spec: WorkerSpec, model: Model) -> None:
    from orchestrator.worker.training import initial_policy

    initial = initial_policy.InitialPolicy.from_file(path, str(spec.init_sha256))
    say(f"starts from {spec.init} ({initial.label}): {initial_policy.start(model, initial)}")
    if model.env is not None and (hidden := asymmetric_critic.privileged_values(model.env)) > 0:
        asymmetric_critic.set_to_zero(model, hidden)


def _ends_episodes(spec: WorkerSpec) -> bool:
    return spec.on_divergence == "end-episode"


def _replay(paths: JobPaths, model: Model, spec: WorkerSpec, ranks: Ranks) -> Replay | None:
    """The files of the model's replay buffer, beside its checkpoints; None where it has none."""
    if not isinstance(model, OffPolicy):
        return None
    assert model.replay_buffer is not None
    replay = Replay(paths.replay(ranks.rank), model.replay_buffer)
    rows = min(model.replay_buffer.buffer_size, math.ceil(spec.total_timesteps / spec.n_envs))
    size_mib = rows * replay.bytes_a_row / 2**20
    say(
        f"replay buffer: up to {rows * model.n_envs:,} transitions, {size_mib:,.0f} MiB in memory and on disk"
    )
    return replay
