"""``timings.csv``: one row an iteration, with the time spent in each phase.

The clock is :func:`time.perf_counter` (monotonic), read twice a phase and step: about 0.1
microseconds each.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic, perf_counter
from typing import Literal

from orchestrator.core.timing_columns import COLUMNS
from orchestrator.worker.ranks.ranks import Ranks
from orchestrator.worker.runtime import resources
from orchestrator.worker.runtime.csv_tables import CsvTable
from orchestrator.worker.training.algorithms import Model
from orchestrator.worker.training.fast.ppo import FastPPO
from orchestrator.worker.training.recorder import Recorder

OF_LOOP = ("rollout_s", "train_s")
DIGITS = 7
"""Digits of a second after the decimal point."""


class Timings:
    """Measures iterations and, on rank 0, writes their rows.

    ``rollout_s`` and ``train_s`` include the search for non-finite numbers; ``wall_s`` is both and
    the writing of logs. Checkpoints fall between iterations.

    :param keep: rows of earlier attempts that stay.
    """

    def __init__(
        self, path: Path, model: Model, recorder: Recorder, ranks: Ranks, *, keep: int
    ) -> None:
        self._table = CsvTable(path, keep=keep, columns=COLUMNS) if ranks.rank == 0 else None
        self._model = model
        self._recorder = recorder
        self._ranks = ranks
        self._of_model: dict[str, float] = {}
        """Phases within rollout and update, which the fast learner measures itself."""
        if isinstance(model, FastPPO):
            self._of_model = model.seconds
        self.begin_iteration()

    @property
    def rows(self) -> int:
        return 0 if self._table is None else self._table.rows

    def begin_iteration(self) -> None:
        self._seconds = dict.fromkeys(OF_LOOP, 0.0)
        for phase in self._of_model:
            self._of_model[phase] = 0.0
        self._recorder.env_s = 0.0
        self._totals = resources.totals()
        self._collectives_s = self._ranks.seconds
        self._began = self._phase_began = perf_counter()

    def end_phase(self, phase: Literal["rollout_s", "train_s"]) -> None:
        """Count the time since the end of the phase before."""
        now = perf_counter()
        self._seconds[phase] += now - self._phase_began
        self._phase_began = now

    def write_row(self, iteration: int) -> None:
        """Write the iteration's row. :raises OSError: it cannot be written."""
        if self._table is None:
            return
        seconds = {
            "wall_s": perf_counter() - self._began,
            "clock_s": monotonic(),
            "env_s": self._recorder.env_s,
            "allreduce_s": self._ranks.seconds - self._collectives_s,
            **self._seconds,
            **self._of_model,
        }
        totals = resources.totals()
        self._table.append(
            {
                "iteration": iteration,
                "env_steps": self._model.num_timesteps,
                **{name: round(value, DIGITS) for name, value in seconds.items()},
                **{name: _growth(before, totals[name]) for name, before in self._totals.items()},
                **resources.present(),
            }
        )


def _growth(before: float | None, now: float | None) -> float | None:
    return None if now is None or before is None else round(now - before, DIGITS)
