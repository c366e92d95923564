"""The training of one job: build, resume, learn, save, evaluate.

:meth:`Training.train` is ``PPO.learn()`` written out (a test proves that it gives the same bits), with a
look at the numbers, a row of timings and perhaps a checkpoint after every iteration.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import time
from collections.abc import Callable

from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import safe_mean

from orchestrator.contract import JobPaths, WorkerSpec, write_whole
from orchestrator.worker import checkpoint, envs, evaluation, finite, learners, timings, weights
from orchestrator.worker.checkpoint import CheckpointStore, Place
from orchestrator.worker.fast.ppo import FastPPO
from orchestrator.worker.outcome import Facts, Interrupted
from orchestrator.worker.progress import ProgressReporter, say
from orchestrator.worker.tables import CsvTable, LoggerTable
from orchestrator.worker.timings import WatchedEnv

LINE_EVERY_S = 10.0
"""Between lines on the progress of training in ``worker.log``."""


def run(spec: WorkerSpec, paths: JobPaths, facts: Facts, reporter: ProgressReporter, leave: Callable[[], bool]) -> None:
    """Train to the end, save the policy, evaluate it.

    ``leave`` tells whether we are asked to leave; that happens at the next iteration boundary.

    :raises Interrupted: asked to leave, at a whole checkpoint.
    :raises Diverged: something is not finite; the last checkpoint is from before.
    :raises OSError: as the disk answers.
    """
    _remove_strays(paths)
    venv = envs.make(spec, paths.root, n_envs=spec.n_envs, seed=spec.seed)
    try:
        learner = learners.build(spec, envs.normalized(spec, venv) if spec.normalize else venv)
        facts.learner, facts.learner_reason, reporter.learner = learner.name, learner.reason, learner.name
        cpus = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "any"
        say(f"{spec.job_id}: {spec.algo}, learner {learner.name} ({learner.reason})")
        say(f"seed {spec.seed}, {spec.n_envs} environments, threads = {spec.threads} on CPU {cpus}")
        training = Training(spec, paths, learner.model, facts, reporter)
        training.train(leave)
        facts.weights_sha256 = weights.sha256(learner.model)
        training.save_policy()
        if spec.eval_episodes:
            training.evaluate(leave)
    finally:
        venv.close()


class Training:
    """The loop, and what it carries from iteration to iteration and from attempt to attempt."""

    def __init__(self, spec: WorkerSpec, paths: JobPaths, model: PPO, facts: Facts, reporter: ProgressReporter) -> None:
        self._spec, self._paths, self._model, self._facts, self._reporter = spec, paths, model, facts, reporter
        self._store = CheckpointStore(paths.checkpoints, spec.fingerprint())
        state = self._store.newest()
        place = Place() if state is None else checkpoint.restore(model, state)
        if state is not None:
            facts.resumed_from = model.num_timesteps
            say(f"resumed at {model.num_timesteps} env_steps")
            if place.learner != facts.learner:
                say(
                    f"learner {place.learner} trained it so far: the same algorithm, but not the same bits from here on"
                )
        facts.env_steps = model.num_timesteps
        facts.ep_rew_mean_first, facts.ep_rew_mean = place.ep_rew_mean_first, self._mean_return()
        self._iteration = place.iteration
        self._saved_at = facts.resumed_from
        self._iteration_began = time.monotonic()
        self._began = self._iteration_began - place.training_s
        self._next_line = self._iteration_began

        self._progress = CsvTable(paths.progress_csv, keep=place.progress_rows, columns=learners.logged_columns(model))
        model.set_logger(Logger(folder=None, output_formats=[LoggerTable(self._progress)]))
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
            model.policy.optimizer.register_step_post_hook(lambda *_: self._tell())
        self._timings = timings.start(paths.timings_csv, model, self._env, keep=place.timings_rows)

    def train(self, leave: Callable[[], bool]) -> None:
        """``PPO.learn()`` up to ``total_timesteps``; the last checkpoint is that of the trained policy."""
        model, clock, total = self._model, self._timings, self._spec.total_timesteps
        while model.num_timesteps < total:
            steps_before = model.num_timesteps
            self._iteration += 1
            clock.begin()
            with finite.blaming(model, self._iteration):
                model.collect_rollouts(self._env, self._callback, model.rollout_buffer, model.n_steps)  # type: ignore[arg-type]
                finite.check_rollout(model, self._iteration)
                clock.rollout_done()
                model._update_current_progress_remaining(model.num_timesteps, total)
                model.train()
                finite.check_policy(model, self._iteration)
                clock.train_done()
            self._log()
            clock.end(self._iteration, model.num_timesteps)
            leaving = leave()
            if leaving or self._due(steps_before):
                self._save_checkpoint()
            if leaving:
                raise Interrupted(f"asked to leave; the checkpoint at {model.num_timesteps} env_steps stands")
        if self._saved_at != model.num_timesteps:
            self._save_checkpoint()
        clock.stop()

    def _log(self) -> None:
        """After the update, so that a row of ``progress.csv`` holds what belongs to one iteration."""
        model, facts, reporter = self._model, self._facts, self._reporter
        # From our monotonic clock: a wall clock set back would break SB3's division.
        model.start_time = time.time_ns() - int(self._training_s() * 1e9)
        model.dump_logs(self._iteration)
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
            progress_rows=self._progress.rows,
            timings_rows=self._timings.rows,
            ep_rew_mean_first=self._facts.ep_rew_mean_first,
            training_s=self._training_s(),
        )
        state = checkpoint.capture(self._model, place)
        self._facts.unsaveable = state["unsaveable"] or None
        self._store.save(self._model.num_timesteps, state)
        self._saved_at = self._model.num_timesteps
        self._iteration_began = time.monotonic()
        self._facts.checkpoint_s += self._iteration_began - begun

    def _training_s(self) -> float:
        return time.monotonic() - self._began

    def save_policy(self) -> None:
        """``model.zip`` and, where there is normalisation, ``vecnormalize.pkl``: both load without this package."""
        content = io.BytesIO()
        self._model.save(content)
        write_whole(self._paths.model, content.getvalue())
        normalization = self._model.get_vec_normalize_env()
        if normalization is not None:
            write_whole(self._paths.vecnormalize, pickle.dumps(normalization))

    def evaluate(self, leave: Callable[[], bool]) -> None:
        """``eval.json``, of the policy as it is now."""

        def each_step() -> None:
            self._reporter.report("evaluating", self._model.num_timesteps)
            if leave():
                raise Interrupted("asked to leave during evaluation; the policy is trained and saved")

        begun = time.monotonic()
        result = evaluation.evaluate(self._spec, self._paths.root, self._model, each_step)
        write_whole(self._paths.eval, result.to_json())
        self._facts.eval_s, self._facts.eval_mean = time.monotonic() - begun, result.deterministic.mean
        say(f"evaluated over {result}")


def _remove_strays(paths: JobPaths) -> None:
    """Remove what an earlier attempt left beside our files when it was killed while writing them."""
    for path in (paths.progress_csv, paths.timings_csv, paths.model, paths.vecnormalize, paths.eval):
        for stray in path.parent.glob(f".{path.name}.*.tmp"):
            stray.unlink(missing_ok=True)
