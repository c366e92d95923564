"""What the jobs of trials have come to: figures over their seeds, and what they started from."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.analysis.job_values import (
    figures_of,
    job_values,
    why_missing,
)
from orchestrator.analysis.statistics import Estimate
from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.measure_expressions import ExpressionError
from orchestrator.core.task_names import measure_of_task
from orchestrator.features.search import trials
from orchestrator.features.search.declaration.spec import Aggregate
from orchestrator.features.search.history import Trial
from orchestrator.features.search.trial_values import aggregated_value, mean_over_seeds
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.lineage import env_steps_before


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """What the jobs of a trial, one for each seed, have come to."""

    spread: Sequence[float | None]
    """Of each objective: the standard deviation over seeds; None with fewer than two."""
    means: Sequence[Estimate | None]
    """As :func:`.mean_over_seeds` gives them, of each objective."""
    measures: Mapping[str, float]
    """Measures that all of them have, aggregated as the objectives are; the task's own first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLineage:
    """What the jobs of a trial started from."""

    env_steps: int | None
    """Those of the trial, with those of the policies, of each of its jobs; None: not known."""
    before: frozenset[int | None]
    """env_steps that the policies had when its jobs started from them: 0 for random weights, None:
    not known."""
    parents: Sequence[str]
    """Jobs of the same run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """What the jobs of trials have come to."""

    rows: Mapping[str, SummaryRow]
    """By ``job_id``."""
    how: Aggregate

    def refuse_without_value(
        self, run_dir: Path, by: str, found: Sequence[Trial], noun: str
    ) -> None:
        """:param found: trials, perhaps without a value of ``by``. :param noun: what they are.
        :raises UsageError: some of them have finished, and none has a value of it.
        """
        finished = [trial for trial in found if self.have_succeeded(trial)]
        if finished and all(self.valued(by, trial).values is None for trial in finished):
            why = self._why_without_value(by, finished, noun)
            raise UsageError(f"{run_dir}: {option('by')} {by}: {why}")

    def valued(self, by: str, trial: Trial) -> Trial:
        """``trial`` with its value of ``by`` in place of its own."""
        value = aggregated_value(self._of_jobs(by, trial), self.how)
        if value is None or not self.have_succeeded(trial):
            return replace(trial, values=None)
        return replace(trial, values=[value])

    def over_seeds(self, trial: Trial, names: Sequence[str]) -> OverSeeds:
        """:param names: of the objectives."""
        return OverSeeds(
            spread=[_deviation(self._of_jobs(name, trial)) for name in names],
            means=[mean_over_seeds(name, trial.jobs, self.rows) for name in names],
            measures=self._measures(trial),
        )

    def lineage(self, trial: Trial) -> TrialLineage:
        rows = self._rows_of(trial)
        earlier = [env_steps_before(row["env_steps"], row["lineage_env_steps"]) for row in rows]
        return TrialLineage(
            env_steps=trials.with_earlier(trial, earlier),
            before=frozenset(earlier),
            parents=list(dict.fromkeys(row["parent"] for row in rows if row["parent"])),
        )

    def have_succeeded(self, trial: Trial) -> bool:
        """Whether there are jobs of ``trial``, and all have SUCCEEDED."""
        rows = self._rows_of(trial)
        return bool(rows) and all(row["state"] == "SUCCEEDED" for row in rows)

    def _rows_of(self, trial: Trial) -> list[SummaryRow]:
        return [self.rows[job_id] for job_id in trial.jobs if job_id in self.rows]

    def _of_jobs(self, name: str, trial: Trial) -> Sequence[float | None]:
        return job_values(name, [figures_of(row) for row in self._rows_of(trial)]).of_jobs

    def _measures(self, trial: Trial) -> dict[str, float]:
        of_jobs = [row["measures"] or {} for row in self._rows_of(trial)]
        names = dict.fromkeys(name for measures in of_jobs for name in measures)
        own = measure_of_task(names)
        in_order = sorted(names, key=lambda name: name != own)
        found = {}
        for name in in_order:
            value = aggregated_value([measures.get(name) for measures in of_jobs], self.how)
            if value is not None:
                found[name] = value
        return found

    def _why_without_value(self, by: str, finished: Sequence[Trial], noun: str) -> str:
        rows = [row for trial in finished for row in self._rows_of(trial)]
        try:
            more = why_missing(by, rows)
        except ExpressionError as error:
            return str(error)
        first = [figures_of(row) for row in self._rows_of(finished[0])]
        text = f"none of the finished {noun}s has it ({job_values(by, first).why})"
        return f"{text}; {more}" if more else text


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.stdev(known) if len(known) == len(values) >= 2 else None
