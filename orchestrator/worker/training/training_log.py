"""What is told of a training while it goes on: rows of ``progress.csv``, lines in ``worker.log``, and
what reporter and exit record say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import safe_mean

from orchestrator.core.progress_columns import ROLLOUT
from orchestrator.worker.runtime.csv_tables import LoggerTable
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import algorithms
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.recorder import mean_measures
from orchestrator.worker.training.training_state import LoopState

LOG_INTERVAL_S = 10.0
"""Between lines on the progress of training in ``worker.log``."""


class TrainingLog:
    """Writes the rows of ``progress.csv``, and tells reporter and exit record of the training."""

    def __init__(self, attempt: Attempt, loop: LoopState) -> None:
        self._attempt = attempt
        self._model = attempt.model
        self._facts = attempt.facts
        self._reporter = attempt.reporter
        self._table: LoggerTable | None = None
        now = time.monotonic()
        self._iteration_began = now
        self._training_began = now - loop.training_s
        self._next_line = now
        self._facts.env_steps = self._model.num_timesteps
        self._facts.ep_rew_mean_first = loop.ep_rew_mean_first
        self._tell_of_episodes()

    def open(self, columns: Sequence[str], *, keep: int) -> None:
        """Have the model log to ``progress.csv`` from now on, on the rank that writes one, and
        report during its updates: the supervisor would take a long one for a stall.

        :param columns: of parts of the loop. :param keep: rows of earlier attempts that stay.
        """
        outputs: list[KVWriter] = []
        if self._attempt.ranks.rank == 0:
            columns = [*ROLLOUT, *columns]  # the first rows may lack them
            path = self._attempt.paths.progress_csv
            self._table = LoggerTable(path, keep=keep, columns=columns)
            outputs.append(self._table)
        self._model.set_logger(Logger(folder=None, output_formats=outputs))
        if isinstance(self._model, FastPPO):
            self._model.each_minibatch = self.report  # type: ignore[method-assign]
        else:
            for optimizer in algorithms.optimizers(self._model).values():
                optimizer.register_step_post_hook(lambda *_: self.report())

    def after_step(self) -> None:
        """To be called after every step of the environments."""
        if self._facts.first_step_s is None:
            self._facts.first_step_s = self._facts.age_s()
        self.report()

    def report(self) -> None:
        self._reporter.report("training", self._model.num_timesteps)

    @property
    def latest_row(self) -> Mapping[str, Any]:
        """Of ``progress.csv``; empty on ranks that write none."""
        return {} if self._table is None else self._table.latest

    def tell_of_features(self, facts: Mapping[str, Any]) -> None:
        self._facts.parts = facts

    def write_row(self, iteration: int) -> None:
        """Write a row of ``progress.csv``, after the update, so that a row holds what belongs to
        one iteration, and tell of it.
        """
        facts = self._facts
        reporter = self._reporter
        env_steps = self._model.num_timesteps
        self._attempt.before_writing()
        # From the monotonic clock: a wall clock set back would break SB3's division.
        self._model.start_time = time.time_ns() - int(self.training_s() * 1e9)
        self._tell_of_episodes()
        for name, mean in (facts.training_measures or {}).items():
            self._model.logger.record(f"measures/{name}", mean)
        algorithms.dump_logs(self._model, iteration)
        if facts.ep_rew_mean_first is None:
            facts.ep_rew_mean_first = facts.ep_rew_mean
        now = time.monotonic()
        reporter.env_steps_per_s = (env_steps - facts.env_steps) / (now - self._iteration_began)
        reporter.iteration = iteration
        facts.env_steps = env_steps
        self._iteration_began = now
        self.report()
        if now >= self._next_line or self._attempt.is_trained:
            self._next_line = now + LOG_INTERVAL_S
            self._say_how_far()

    def _say_how_far(self) -> None:
        facts = self._facts
        total = self._attempt.spec.total_timesteps
        mean = "no episode ended yet"
        if facts.ep_rew_mean is not None:
            mean = f"ep_rew_mean {facts.ep_rew_mean:,.1f}"
        say(
            f"{self._model.num_timesteps:,} of {total:,} env_steps, {mean}, "
            f"{self._reporter.env_steps_per_s:,.0f} env_steps/s"
        )

    def _tell_of_episodes(self) -> None:
        """Tell the means over the latest episodes: ``rollout/ep_rew_mean``, and their measures."""
        episodes = self._model.ep_info_buffer or ()
        mean = float(safe_mean([episode["r"] for episode in episodes]))
        self._facts.ep_rew_mean = None if math.isnan(mean) else mean
        self._facts.training_measures = mean_measures(episodes) or None

    @property
    def rows(self) -> int:
        """Of ``progress.csv``."""
        return 0 if self._table is None else self._table.rows

    def training_s(self) -> float:
        """Wall time of the training so far, over all attempts."""
        return time.monotonic() - self._training_began
