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

from orchestrator.core.text import count
from orchestrator.worker.runtime.csv_tables import CsvTable, LoggerTable
from orchestrator.worker.runtime.progress import say
from orchestrator.worker.training import algorithms, learners
from orchestrator.worker.training.attempt import Attempt
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.measured_episodes import mean_measures
from orchestrator.worker.training.training_state import LoopState

LOG_INTERVAL_S = 10.0
"""Between lines on the progress of training in ``worker.log``."""


class TrainingLog:
    """Writes the rows of ``progress.csv``, and tells reporter and exit record of the training.

    It is no part of the loop (:class:`.LoopPart`): parts come before and after its row.
    """

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
        report during its updates.

        :param columns: of parts of the loop. :param keep: rows of earlier attempts that stay.
        """
        outputs: list[KVWriter] = []
        if self._attempt.ranks.rank == 0:
            rows = CsvTable(
                self._attempt.paths.progress_csv,
                keep=keep,
                columns=[*learners.logged_columns(self._model), *columns],
            )
            self._table = LoggerTable(rows)
            outputs.append(self._table)
        self._model.set_logger(Logger(folder=None, output_formats=outputs))
        self._report_during_updates()

    def _report_during_updates(self) -> None:
        """A long update must report progress, too, or the supervisor would take it for a stall."""
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
        self._reporter.parts = facts

    def write_row(self, iteration: int) -> None:
        """Write a row of ``progress.csv``, after the update, so that a row holds what belongs to
        one iteration, and tell of it.
        """
        self._attempt.before_writing()
        # From the monotonic clock: a wall clock set back would break SB3's division.
        self._model.start_time = time.time_ns() - int(self._training_s() * 1e9)
        self._tell_of_episodes()
        self._log_measures()
        algorithms.dump_logs(self._model, iteration)
        now = time.monotonic()
        self._tell_of_iteration(iteration, now - self._iteration_began)
        self._iteration_began = now
        self.report()
        if now >= self._next_line or self._attempt.is_trained:
            self._next_line = now + LOG_INTERVAL_S
            self._say_how_far()

    def _tell_of_iteration(self, iteration: int, elapsed_s: float) -> None:
        facts = self._facts
        reporter = self._reporter
        env_steps = self._model.num_timesteps
        reporter.env_steps_per_s = (env_steps - facts.env_steps) / elapsed_s
        facts.env_steps = env_steps
        if facts.ep_rew_mean_first is None:
            facts.ep_rew_mean_first = facts.ep_rew_mean
        reporter.iteration = iteration
        reporter.ep_rew_mean = facts.ep_rew_mean

    def _say_how_far(self) -> None:
        facts = self._facts
        total = self._attempt.spec.total_timesteps
        done = f"{self._model.num_timesteps:,} of {total:,} env_steps"
        mean = "no episode ended yet"
        if facts.ep_rew_mean is not None:
            mean = f"ep_rew_mean {facts.ep_rew_mean:,.1f}"
        diverged = f", {count(facts.divergences, 'divergence')}" if facts.divergences else ""
        say(f"{done}, {mean}, {self._reporter.env_steps_per_s:,.0f} env_steps/s{diverged}")

    def _tell_of_episodes(self) -> None:
        """Means over the last episodes."""
        self._facts.ep_rew_mean = self._mean_return()
        if self._attempt.spec.measure_training:
            self._facts.training_measures = mean_measures(self._model.ep_info_buffer or ())

    def _log_measures(self) -> None:
        """Add the means of the measures to the row that is written next."""
        for name, mean in (self._facts.training_measures or {}).items():
            self._model.logger.record(f"measures/{name}", mean)

    def _mean_return(self) -> float | None:
        """``rollout/ep_rew_mean``: None before the first episode has ended."""
        mean = safe_mean([episode["r"] for episode in self._model.ep_info_buffer or ()])
        return None if math.isnan(mean) else float(mean)

    def leave_out_checkpoint(self) -> None:
        """The speed of the next iteration counts from now on: one has just been written."""
        self._iteration_began = time.monotonic()

    def saved(self) -> dict[str, Any]:
        """The fields of :class:`LoopState` that this class goes on from."""
        return {
            "progress_rows": 0 if self._table is None else self._table.table.rows,
            "ep_rew_mean_first": self._facts.ep_rew_mean_first,
            "training_s": self._training_s(),
        }

    def _training_s(self) -> float:
        return time.monotonic() - self._training_began
