"""The training of one job: build, resume, learn, save, evaluate.

:meth:`Training.train` is ``learn()`` of Stable-Baselines3 written out (tests prove that it gives the same bits), with
a look at the numbers, a row of timings and perhaps a checkpoint after every iteration.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path

from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import safe_mean

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.distributed.ranks import Ranks, join, own_part
from orchestrator.worker.envs import env_factory
from orchestrator.worker.runtime.csv_tables import CsvTable, LoggerTable
from orchestrator.worker.runtime.outcome import Facts, Interrupted
from orchestrator.worker.runtime.progress import ProgressReporter, say
from orchestrator.worker.training import algorithms, checkpoint, evaluation, learners, nan_guard, timings, weights
from orchestrator.worker.training.algorithms import Model, OffPolicy
from orchestrator.worker.training.checkpoint import CheckpointStore, Place
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.replay import Replay
from orchestrator.worker.training.shared_statistics import Common
from orchestrator.worker.training.timings import WatchedEnv

LINE_EVERY_S = 10.0
"""Between lines on the progress of training in ``worker.log``."""


def run(
    spec: WorkerSpec,
    paths: JobPaths,
    facts: Facts,
    reporter: ProgressReporter,
    leave: Callable[[], bool],
    rendezvous: Path,
    before_writing: Callable[[], object] = lambda: None,
) -> None:
    """Train to the end, save the policy, evaluate it. Of several ranks all train, and rank 0 does the rest.

    ``leave`` tells whether we are asked to leave; that happens at the next iteration boundary, of all ranks together.

    :param rendezvous: where the ranks of an attempt meet (:func:`orchestrator.worker.distributed.ranks.join`).
    :param before_writing: called before anything in the job's directory changes.
    :raises Interrupted: asked to leave, at a whole checkpoint.
    :raises RankLostError: another rank is gone.
    :raises Diverged: something is not finite; the last checkpoint is from before.
    :raises OSError: as the disk answers.
    """
    ranks = join(spec.ranks, spec.backend, learners.device(spec), rendezvous)
    before_writing()
    if ranks.rank == 0:
        _remove_strays(paths)
    ours = own_part(spec.n_envs, ranks)
    venv = env_factory.make(spec, paths.root, n_envs=len(ours), seed=spec.seed, first_env=ours.start)
    try:
        learner = learners.build(spec, env_factory.normalized(spec, venv) if spec.normalize else venv, ranks)
        facts.learner, facts.learner_reason, reporter.learner = learner.name, learner.reason, learner.name
        cpus = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "any"
        say(f"{spec.job_id}: {spec.algo}, learner {learner.name} ({learner.reason})")
        say(f"seed {spec.seed}, {spec.n_envs} environments, threads = {spec.threads} on CPU {cpus}")
        if ranks.size > 1:
            say(f"rank {ranks.rank} of {ranks.size}: environments {ours.start} to {ours.stop - 1}, {spec.mode}")
        training = Training(spec, paths, learner.model, facts, reporter, ranks, before_writing)
        training.train(leave)
        ranks.close()
        facts.weights_sha256 = weights.sha256(learner.model)
        if ranks.rank > 0:
            return
        training.save_policy()
        if spec.eval_episodes:
            training.evaluate(leave)
    finally:
        venv.close()


class Training:
    """The loop, and what it carries from iteration to iteration and from attempt to attempt."""

    def __init__(
        self,
        spec: WorkerSpec,
        paths: JobPaths,
        model: Model,
        facts: Facts,
        reporter: ProgressReporter,
        ranks: Ranks,
        before_writing: Callable[[], object] = lambda: None,
    ) -> None:
        self._spec, self._paths, self._model, self._facts, self._reporter = spec, paths, model, facts, reporter
        self._ranks, self._before_writing = ranks, before_writing
        before_writing()
        replay = _replay(paths, model, spec, ranks)
        self._store = CheckpointStore(
            paths.checkpoints, spec.fingerprint(), replay, spec.n_envs, before_writing=before_writing
        )
        state = self._store.newest(ranks)
        place = Place()
        if state is not None:
            place = checkpoint.restore(model, state, ranks.rank)
            facts.resumed_from = model.num_timesteps
            say(f"resumed at {model.num_timesteps} env_steps")
            if place.learner != facts.learner:
                say(
                    f"learner {place.learner} trained it so far: the same algorithm, but not the same bits from here on"
                )
        self._common = Common(model, ranks, serving=spec.mode == "parameter-server")
        facts.env_steps = model.num_timesteps
        facts.ep_rew_mean_first, facts.ep_rew_mean = place.ep_rew_mean_first, self._mean_return()
        self._iteration = place.iteration
        self._saved_at = facts.resumed_from
        self._iteration_began = time.monotonic()
        self._began = self._iteration_began - place.training_s
        self._next_line = self._iteration_began

        self._progress: CsvTable | None = None
        if ranks.rank == 0:
            columns = learners.logged_columns(model)
            self._progress = CsvTable(paths.progress_csv, keep=place.progress_rows, columns=columns)
        tables = [] if self._progress is None else [LoggerTable(self._progress)]
        model.set_logger(Logger(folder=None, output_formats=list(tables)))
        # Resets the environments, unless restoring has put them in the middle of their episodes.
        steps_left = spec.total_timesteps - model.num_timesteps
        _, self._callback = model._setup_learn(steps_left, None, reset_num_timesteps=state is None)
        model._num_timesteps_at_start = 0  # time/fps is over all attempts, as time/time_elapsed
        assert model.env is not None
        self._env = WatchedEnv(model.env, self._after_step)
        # A long update is progress too: without a word of it, it would be taken for a stall.
        if isinstance(model, FastPPO):
            model.each_minibatch = self._tell
        else:
            for optimizer in algorithms.optimizers(model).values():
                optimizer.register_step_post_hook(lambda *_: self._tell())
        self._timings = timings.start(paths.timings_csv, model, self._env, ranks, keep=place.timings_rows)
        self._common.start()

    def train(self, leave: Callable[[], bool]) -> None:
        """``learn()`` up to ``total_timesteps``; the last checkpoint is that of the trained policy."""
        model, clock, total = self._model, self._timings, self._spec.total_timesteps
        while model.num_timesteps < total:
            steps_before = model.num_timesteps
            self._iteration += 1
            clock.begin()
            self._common.begin()
            with nan_guard.blaming(model, self._iteration):
                self._learn(min(total, steps_before + self._spec.steps_an_iteration))
            self._common.end(self._iteration)
            self._log()
            clock.end(self._iteration, model.num_timesteps)
            leaving = self._ranks.any(leave())
            if leaving or self._due(steps_before):
                self._save_checkpoint()
            if leaving:
                raise Interrupted(f"asked to leave; the checkpoint at {model.num_timesteps} env_steps stands")
        if self._saved_at != model.num_timesteps:
            self._save_checkpoint()
        clock.stop()
        self._reporter.report("training", model.num_timesteps, last=True)

    def _learn(self, end: int) -> None:
        """Rollouts, each with its update, up to ``end`` env_steps of the training. Of PPO it is one."""
        model, clock, number = self._model, self._timings, self._iteration
        while model.num_timesteps < end:
            steps_before = model.num_timesteps
            algorithms.collect(model, self._env, self._callback)
            own = model.num_timesteps - steps_before
            steps = own * self._ranks.size
            model.num_timesteps = steps_before + steps
            nan_guard.check_rollout(model, number, own // model.n_envs)
            clock.rollout_done()
            algorithms.update(model, steps, self._spec.total_timesteps)
            nan_guard.check_losses(model, number)
            clock.train_done()
        nan_guard.check_parameters(model, number)
        clock.train_done()

    def _log(self) -> None:
        """After the update, so that a row of ``progress.csv`` holds what belongs to one iteration."""
        model, facts, reporter = self._model, self._facts, self._reporter
        self._before_writing()
        # From our monotonic clock: a wall clock set back would break SB3's division.
        model.start_time = time.time_ns() - int(self._training_s() * 1e9)
        algorithms.dump_logs(model, self._iteration)
        now = time.monotonic()
        reporter.env_steps_per_s = (model.num_timesteps - facts.env_steps) / (now - self._iteration_began)
        self._iteration_began = now
        facts.env_steps = model.num_timesteps
        facts.ep_rew_mean = self._mean_return()
        if facts.ep_rew_mean_first is None:
            facts.ep_rew_mean_first = facts.ep_rew_mean
        reporter.iteration, reporter.ep_rew_mean = self._iteration, facts.ep_rew_mean
        self._tell()
        if now >= self._next_line or model.num_timesteps >= self._spec.total_timesteps:
            self._next_line = now + LINE_EVERY_S
            mean = "no episode ended yet" if facts.ep_rew_mean is None else f"ep_rew_mean {facts.ep_rew_mean:,.1f}"
            done = f"{model.num_timesteps:,} of {self._spec.total_timesteps:,} env_steps"
            say(f"{done}, {mean}, {reporter.env_steps_per_s:,.0f} env_steps/s")

    def _mean_return(self) -> float | None:
        """``rollout/ep_rew_mean``: None before the first episode has ended."""
        mean = safe_mean([episode["r"] for episode in self._model.ep_info_buffer or ()])
        return None if math.isnan(mean) else float(mean)

    def _after_step(self) -> None:
        if self._facts.first_step_s is None:
            self._facts.first_step_s = self._facts.age_s()
        self._tell()

    def _tell(self) -> None:
        self._reporter.report("training", self._model.num_timesteps)

    def _due(self, steps_before: int) -> bool:
        """Whether a multiple of ``checkpoint_every`` was reached since ``steps_before``."""
        every = self._spec.checkpoint_every
        return self._model.num_timesteps // every > steps_before // every

    def _save_checkpoint(self) -> None:
        begun = time.monotonic()
        place = Place(
            iteration=self._iteration,
            learner=self._facts.learner,
            progress_rows=0 if self._progress is None else self._progress.rows,
            timings_rows=self._timings.rows,
            ep_rew_mean_first=self._facts.ep_rew_mean_first,
            training_s=self._training_s(),
        )
        state = checkpoint.capture(self._model, place)
        self._facts.unsaveable = state["unsaveable"] or None
        is_last = self._model.num_timesteps >= self._spec.total_timesteps
        self._store.save(self._model.num_timesteps, state, self._ranks, is_last=is_last)
        self._saved_at = self._model.num_timesteps
        self._iteration_began = time.monotonic()
        self._facts.checkpoint_s += self._iteration_began - begun

    def _training_s(self) -> float:
        return time.monotonic() - self._began

    def save_policy(self) -> None:
        """``model.zip`` and, where there is normalisation, ``vecnormalize.pkl``: both load without this package."""
        content = io.BytesIO()
        self._model.save(content)
        self._before_writing()
        write_whole(self._paths.model, content.getvalue())
        normalization = self._model.get_vec_normalize_env()
        if normalization is not None:
            write_whole(self._paths.vecnormalize, pickle.dumps(normalization))
        self._store.trained()

    def evaluate(self, leave: Callable[[], bool]) -> None:
        """``eval.json``, of the policy as it is now."""

        def each_step() -> None:
            self._reporter.report("evaluating", self._model.num_timesteps)
            if leave():
                raise Interrupted("asked to leave during evaluation; the policy is trained and saved")

        begun = time.monotonic()
        result = evaluation.evaluate(self._spec, self._paths.root, self._model, each_step)
        self._before_writing()
        write_whole(self._paths.eval, result.to_json())
        self._facts.eval_s, self._facts.eval_mean = time.monotonic() - begun, result.deterministic.mean
        say(f"evaluated over {result}")


def _replay(paths: JobPaths, model: Model, spec: WorkerSpec, ranks: Ranks) -> Replay | None:
    """The model's replay buffer beside its checkpoints; None where it has none."""
    if not isinstance(model, OffPolicy):
        return None
    buffer = model.replay_buffer
    assert buffer is not None
    replay = Replay(paths.replay(ranks.rank), buffer)
    rows = min(buffer.buffer_size, math.ceil(spec.total_timesteps / spec.n_envs))
    size_mib = rows * replay.bytes_a_row / 2**20
    say(f"replay buffer: up to {rows * model.n_envs:,} transitions, {size_mib:,.0f} MiB in memory and on disk")
    return replay


def _remove_strays(paths: JobPaths) -> None:
    """Remove what an earlier attempt left beside our files when it was killed while writing them."""
    for path in (paths.progress_csv, paths.timings_csv, paths.model, paths.vecnormalize, paths.eval):
        for stray in path.parent.glob(f".{path.name}.*.tmp"):
            stray.unlink(missing_ok=True)
