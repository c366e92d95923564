"""The best trials of a run directory, of a search or of plain jobs, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import LedgerDamagedError, UsageError
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import decimal
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search import copied_trials, trials
from orchestrator.features.search.declaration.spec import Direction
from orchestrator.features.search.history import Trial
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import safe_name

INHERITED = (
    "Some of these trials began with the policy of another one, so they cannot be compared at equal env_steps. "
    "`reevaluate = 5` in [search] trains the five best again from nothing."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best trials, the best first; of several objectives the Pareto front."""

    paths: RunPaths
    objectives: Sequence[str]
    directions: Sequence[Direction]
    shown: Sequence[Trial]
    finished: int
    """How many trials have finished."""
    trials: int
    """How many there are."""
    repeated: Mapping[int, Trial]
    """By the number of a trial: the one that has trained its point again, from nothing and with
    other seeds."""
    is_search: bool
    is_over: bool
    """Whether nothing more is trained: the search has come to its end, or every job to its own."""

    @property
    def remark(self) -> str:
        """What has to be known to compare the trials; empty where there is nothing."""
        return INHERITED if any(trial.parent is not None for trial in self.shown) else ""

    def again(self, trial: Trial) -> Sequence[float] | None:
        """Its values when it was trained again; None where it was not."""
        return self.repeated[trial.number].values if trial.number in self.repeated else None

    def facts(self) -> list[dict[str, Any]]:
        """The trials in JSON types."""
        return [
            {
                "trial": trial.number,
                "values": self._by_objective(trial.values),
                "again": self._by_objective(self.again(trial)),
                "point": dict(trial.point),
                "parent": trial.parent,
                "env_steps": trial.env_steps,
                "jobs": list(trial.jobs),
            }
            for trial in self.shown
        ]

    def _by_objective(self, values: Sequence[float] | None) -> dict[str, float] | None:
        return None if values is None else dict(zip(self.objectives, values, strict=True))

    def copy(self, target: Path) -> Path:
        """Copy robots and policies into a new folder, with a job file whose path is returned.

        :raises UsageError: there is nothing to copy, or no room for it.
        """
        if not self.shown:
            raise UsageError(
                f"{self.paths.root}: no trial has finished, so there is nothing to copy"
            )
        ids = [job_id for trial in self.shown for job_id in trial.jobs]
        with run_directory.reading_ledger(self.paths) as ledger:
            rows = [ledger.job_row(job_id) for job_id in ids]
        jobs = {row.job_id: row.job for row in rows if row is not None}
        if missing := [job_id for job_id in ids if job_id not in jobs]:
            raise LedgerDamagedError(
                f"{self.paths.ledger}: has no job {missing[0]}, so nothing was copied"
            )
        name = f"{safe_name(self.paths.root.absolute().name)}-best"
        about = [f"Trial {trial.number}: {self._description_of(trial)}" for trial in self.shown]
        return copied_trials.copy(self.paths, self.shown, jobs, about, target, name)

    def _description_of(self, trial: Trial) -> str:
        values = [
            f"{name} {decimal(value, 2)}"
            for name, value in (self._by_objective(trial.values) or {}).items()
        ]
        return ", ".join(
            [*values, *(f"{key} = {json.dumps(value)}" for key, value in trial.point.items())]
        )


def read(run_dir: Path, number: int) -> Ranking:
    """The best ``number`` trials of a run directory; where there is no search, of its jobs by their
    evaluation.

    :raises UsageError: it is no run directory, or its ledger cannot be read.
    """
    paths = run_directory.existing_run(run_dir)
    reader = TrialReader.of(paths)
    is_search = reader is not None and reader.search is not None
    with run_directory.reading_ledger(paths) as ledger:
        if reader is not None and is_search:
            reader.update(ledger)
            found = reader.asked
            objectives = reader.objectives
            directions = reader.directions
            is_over = reader.history.is_over
        else:
            rows = ledger.summary()
            found = trials.of_plain_jobs(rows)
            is_over = bool(rows) and all(row["state"] in TERMINAL for row in rows)
            objectives = (trials.OF_PLAIN_JOBS,)
            directions = ("maximize",)
    return Ranking(
        paths=paths,
        objectives=objectives,
        directions=directions,
        shown=trials.best(found, directions)[:number],
        finished=sum(trial.values is not None for trial in found),
        trials=len(found),
        repeated={} if reader is None else reader.repeated,
        is_search=is_search,
        is_over=is_over,
    )
