"""The best trials of a run directory, of a search or of plain jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.analysis.statistics import Estimate as Mean
from orchestrator.analysis.statistics import TwoGroups
from orchestrator.core.errors import LedgerDamagedError, UsageError
from orchestrator.core.front_end import option
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import decimal
from orchestrator.experiment import run_directory
from orchestrator.features.search import against_reference, copied_trials, estimates, trials
from orchestrator.features.search.declaration.spec import (
    Direction,
    SearchSpec,
)
from orchestrator.features.search.estimates import Estimate, belief_facts
from orchestrator.features.search.history import Trial, is_measured
from orchestrator.features.search.point_text import exact_point_text
from orchestrator.features.search.racing import Shrunken, believed
from orchestrator.features.search.search_watch import status_line
from orchestrator.features.search.trial_figures import OverSeeds, TrialFigures, TrialLineage
from orchestrator.features.search.trials import TrialReader
from orchestrator.jobfile import safe_name
from orchestrator.ledger.lineage import env_steps_before

ESTIMATE = "estimate"
"""What trials may be ranked by in place of a figure: what a model of them says."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best trials, the best first; of several objectives the Pareto front."""

    paths: RunPaths
    objectives: Sequence[str]
    directions: Sequence[Direction]
    shown: Sequence[Trial]
    over_seeds: Mapping[int, OverSeeds]
    """Of the shown trials, by number."""
    estimates: Mapping[int, Estimate]
    """Of at least the shown trials of the search, by number; empty where there are none (see
    :mod:`.estimates`), where trials are ranked by another figure than the objective, and in the
    order of a race, which has :attr:`believed`."""
    believed: Mapping[int, Shrunken]
    """What the seeds of finished trials say of them, by number; empty where they are not ranked by
    that."""
    lineages: Mapping[int, TrialLineage]
    """Of the shown trials, by number."""
    finished: int
    """How many trials have finished."""
    left_out: int
    """How many of these have no value of what they are ranked by."""
    trials: int
    """How many there are."""
    in_search: Mapping[int, Sequence[float] | None]
    """By the number of a trial that was trained again, from nothing and with other seeds: its
    values in the search, None where it has none of this figure. Those that are shown in their place
    are of that training."""
    against_reference: Mapping[int, Sequence[TwoGroups | None]]
    """Of the trials that were trained again and are shown, and of the best of them, by number, the best
    first: how that training differs from the one of the unchanged job, in each objective. Empty where
    that was not trained."""
    is_by_estimate: bool
    is_search: bool
    has_lineages: bool
    """Whether trials begin with the policies of others."""
    is_over: bool
    """Whether nothing more is trained: the search has come to its end, or every job to its own."""
    status: str
    """How far the search is, and why trials have failed; empty where there is none."""

    @property
    def has_lineage(self) -> bool:
        """Whether one of the shown trials started from a policy, as far as that is known."""
        return any(
            env_steps_before(trial.env_steps, self.lineages[trial.number].env_steps)
            for trial in self.shown
        )

    @property
    def measure_names(self) -> Sequence[str]:
        """Measures of the shown trials, the tasks' own first."""
        names = [name for trial in self.shown for name in self.over_seeds[trial.number].measures]
        return [name for name in dict.fromkeys(names) if name not in self.objectives]

    def again(self, trial: Trial) -> Sequence[float] | None:
        """Its values when it was trained again; None where it was not."""
        return trial.values if trial.number in self.in_search else None

    def fresh_means(self, trial: Trial) -> Sequence[Mean | None]:
        """Of each objective: the mean over the fresh seeds of a trial that was trained again, or of
        the reference; empty for others, as the best of the trials of a search had luck.
        """
        is_fresh = trial.number in self.in_search or trial.role
        return self.over_seeds[trial.number].means if is_fresh else ()

    def facts(self) -> list[dict[str, Any]]:
        """The trials in JSON types."""
        return [
            {
                "trial": trial.number,
                "role": trial.role or None,
                "values": self._by_objective(trial.values),
                "spread": self._by_objective(self.over_seeds[trial.number].spread),
                "measures": dict(self.over_seeds[trial.number].measures),
                "estimate": belief_facts(self.estimates.get(trial.number)),
                "believed": belief_facts(self.believed.get(trial.number)),
                "again": self._by_objective(self.again(trial)),
                "fresh_means": self._by_objective(
                    [None if one is None else asdict(one) for one in self.fresh_means(trial)]
                    or None
                ),
                "against_reference": self._by_objective(self._differences(trial)),
                "in_search": self._by_objective(self.in_search.get(trial.number)),
                "point": dict(trial.point),
                "parent": trial.parent,
                "env_steps": trial.env_steps,
                "lineage_env_steps": self.lineages[trial.number].env_steps,
                "parent_jobs": list(self.lineages[trial.number].parents),
                "jobs": list(trial.jobs),
            }
            for trial in self.shown
        ]

    def _differences(self, trial: Trial) -> Sequence[dict[str, Any] | None] | None:
        if trial.number not in self.against_reference:
            return None
        found = self.against_reference[trial.number]
        return [None if one is None else asdict(one) for one in found]

    def _by_objective(self, values: Sequence[_Value] | None) -> dict[str, _Value] | None:
        return None if values is None else dict(zip(self.objectives, values, strict=True))

    def copy(self, target: Path) -> Path:
        """Copy robots and policies into a new folder, with a job file whose path is returned.

        :raises UsageError: there is nothing to copy, or no room for it.
        """
        if not self.shown:
            raise UsageError(
                f"{self.paths.root}: no trial has finished, so there is nothing to copy"
            )
        copied = [trial for trial in self.shown if not trial.role]
        if not copied:
            raise UsageError(
                f"{self.paths.root}: the unchanged job is the best, so there is no trial to copy;"
                f" {option('number')} of 2 or more copies trials, too"
            )
        ids = [job_id for trial in copied for job_id in trial.jobs]
        with run_directory.reading_ledger(self.paths) as ledger:
            rows = [ledger.job_row(job_id) for job_id in ids]
        jobs = {row.job_id: row.job for row in rows if row is not None}
        if missing := [job_id for job_id in ids if job_id not in jobs]:
            raise LedgerDamagedError(
                f"{self.paths.ledger}: has no job {missing[0]}, so nothing was copied"
            )
        name = f"{safe_name(self.paths.root.absolute().name)}-best"
        noun = "Trial" if self.is_search else "Job"
        about = [f"{noun} {trial.number}: {self._description_of(trial)}" for trial in copied]
        return copied_trials.copy(self.paths, copied, jobs, about, target, name)

    def _description_of(self, trial: Trial) -> str:
        values = [
            f"{name} {decimal(value, 2)}"
            for name, value in zip(self.objectives, trial.values or (), strict=False)
        ]
        return ", ".join([*values, exact_point_text(trial.point)])


def read(
    run_dir: Path,
    number: int,
    by: str | None = None,
    *,
    is_smallest_first: bool = False,
    with_reference: bool = True,
) -> Ranking:
    """The best ``number`` trials of a run directory; where there is no search, of its jobs.

    :param by: a measure, a column or an expression of them; :data:`ESTIMATE`; None: what the search
        has as its objectives, or the evaluation where there is none.
    :param is_smallest_first: of ``by``.
    :param with_reference: whether the unchanged job is among them, if it was trained again, too.
    :raises UsageError: it is no run directory, its ledger cannot be read, none of the finished
        trials has a value of ``by``, or that has a direction of its own.
    """
    if is_smallest_first and by in (None, ESTIMATE):
        raise UsageError(_why_not_smallest(by))
    content = _read(run_directory.existing_run(run_dir))
    ranked = content if with_reference else replace(content, reference=None)
    if by is None:
        order = _order_of_objectives(ranked)
    elif by == ESTIMATE:
        order = _order_of_estimates(ranked)
    else:
        order = _order_of_figure(ranked, by, "minimize" if is_smallest_first else "maximize")
    shown = order.ranked[:number]
    found = order.estimates
    if by is None:
        numbers = {trial.number for trial in shown if not trial.role}
        found = estimates.shown_estimates(content.search, content.trials, numbers)
    jobs = content.jobs
    return Ranking(
        paths=content.paths,
        objectives=order.objectives,
        directions=order.directions,
        shown=shown,
        over_seeds={trial.number: jobs.over_seeds(trial, order.objectives) for trial in shown},
        lineages={trial.number: jobs.lineage(trial) for trial in shown},
        estimates=found,
        believed=order.believed,
        finished=order.finished,
        left_out=order.left_out,
        trials=len(content.trials),
        in_search=order.in_search,
        against_reference=_against_reference(content, order, shown),
        is_by_estimate=by == ESTIMATE,
        is_search=content.search is not None,
        has_lineages=content.search is not None and content.search.has_lineages,
        is_over=content.is_over,
        status=content.status,
    )


def _against_reference(
    content: _Content, order: _Order, shown: Sequence[Trial]
) -> Mapping[int, Sequence[TwoGroups | None]]:
    """As in :class:`Ranking`."""
    reference = content.reference
    if reference is None:
        return {}
    trained_again = [trial for trial in order.ranked if trial.number in order.in_search]
    compared = [trial for trial in trained_again if trial in shown or trial is trained_again[0]]
    return {
        trial.number: against_reference.differences(
            trial, reference, order.objectives, content.jobs.rows
        )
        for trial in compared
    }


def _why_not_smallest(by: str | None) -> str:
    smallest = option("smallest")
    if by is None:
        return (
            f"best: {smallest} is for {option('by')}; the objectives have directions of their own"
        )
    return (
        f"best: {smallest} does not go with {option('by', ESTIMATE)}, which has the direction of the"
        " objective"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """What a run directory has, before it is ranked."""

    paths: RunPaths
    search: SearchSpec | None
    trials: Sequence[Trial]
    """Those that are searched among."""
    repeated: Mapping[int, Trial]
    """By the number of a trial: the one that has trained its point again."""
    reference: Trial | None
    """The unchanged job, trained as these."""
    jobs: TrialFigures
    is_over: bool
    status: str
    """As in :class:`Ranking`."""

    @property
    def objectives(self) -> Sequence[str]:
        return (trials.OF_PLAIN_JOBS,) if self.search is None else self.search.objectives

    @property
    def directions(self) -> Sequence[Direction]:
        return ("maximize",) if self.search is None else self.search.directions

    @property
    def finished(self) -> int:
        return sum(trial.values is not None for trial in self.trials)

    def valued_by(self, by: str) -> _Content:
        """The same with values of ``by``.

        :raises UsageError: none of the finished trials has one.
        """
        jobs = self.jobs
        found = [*self.trials, *self.repeated.values()]
        noun = "job" if self.search is None else "trial"
        jobs.refuse_without_value(self.paths.root, by, found, noun)
        return replace(
            self,
            trials=[jobs.valued(by, trial) for trial in self.trials],
            repeated={number: jobs.valued(by, trial) for number, trial in self.repeated.items()},
            reference=None if self.reference is None else jobs.valued(by, self.reference),
        )

    @property
    def measured(self) -> Sequence[Trial]:
        """The finished trials of a search with one objective."""
        if self.search is None or len(self.objectives) > 1:
            return ()
        return [trial for trial in self.trials if is_measured(trial)]

    def estimates(self) -> Mapping[int, Estimate]:
        space = () if self.search is None else self.search.space
        return estimates.estimates(space, self.measured)


def _read(paths: RunPaths) -> _Content:
    with run_directory.reading_ledger(paths) as ledger:
        rows = ledger.summary()
        reader = TrialReader.updated(paths, ledger)
        search = None if reader is None else reader.search
        status = ""
        if reader is not None and search is not None:
            found = reader.asked
            is_over = reader.history.is_over
            status = status_line(reader, reader.front)
        else:
            found = trials.of_plain_jobs(rows)
            is_over = bool(rows) and all(row["state"] in TERMINAL for row in rows)
    jobs = TrialFigures(
        rows={row["job_id"]: row for row in rows},
        how="median" if search is None else search.aggregate,
    )
    return _Content(
        paths=paths,
        search=search,
        trials=found,
        repeated={} if reader is None else reader.repeated,
        reference=None if reader is None else reader.reference,
        jobs=jobs,
        is_over=is_over,
        status=status,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Finished trials in an order, and what it goes by."""

    objectives: Sequence[str]
    directions: Sequence[Direction]
    ranked: Sequence[Trial]
    """The best first; those that were trained again as that training."""
    finished: int
    left_out: int
    """As in :class:`Ranking`."""
    in_search: Mapping[int, Sequence[float] | None]
    """As in :class:`Ranking`."""
    estimates: Mapping[int, Estimate]
    """By number, where these are what the order goes by; otherwise empty."""
    believed: Mapping[int, Shrunken]
    """As in :class:`Ranking`."""


def _order_of_objectives(content: _Content) -> _Order:
    return _order(content, content.objectives, content.directions, content.search)


def _order_of_figure(content: _Content, by: str, direction: Direction) -> _Order:
    """:raises UsageError: none of the finished trials has a value of ``by``."""
    order = _order(content.valued_by(by), (by,), (direction,), None)
    ranked = {trial.number for trial in order.ranked}
    finished = [
        trial.number
        for trial in content.trials
        if trial.number in ranked or content.jobs.have_succeeded(trial)
    ]
    left_out = sum(number not in ranked for number in finished)
    return replace(order, finished=len(finished), left_out=left_out)


def _order(
    content: _Content,
    objectives: Sequence[str],
    directions: Sequence[Direction],
    search: SearchSpec | None,
) -> _Order:
    """By values, or by what the race of ``search`` believes. Trials that were trained again come
    first, among them the reference.
    """
    judged, others = trials.judged_apart(content.trials, content.repeated)
    reference = content.reference
    compared = trials.best(judged, directions)
    if reference is not None and reference.values and compared:
        compared = trials.best([*compared, reference], directions)
    return _Order(
        objectives=objectives,
        directions=directions,
        ranked=[*compared, *trials.ranked(others, directions, search, among=content.trials)],
        finished=content.finished,
        left_out=0,
        in_search={trial.number: trial.in_search for trial in judged},
        estimates={},
        believed=believed(content.trials, search),
    )


def _order_of_estimates(content: _Content) -> _Order:
    """:raises UsageError: there are no estimates."""
    found = content.estimates()
    if not found:
        why = _why_without_estimates(content.search)
        raise UsageError(f"{content.paths.root}: {option('by')} {ESTIMATE}: {why}")
    return _Order(
        objectives=content.objectives,
        directions=content.directions,
        ranked=estimates.ranked_by(found, content.trials, content.directions[0]),
        finished=content.finished,
        left_out=0,
        in_search={},
        estimates=found,
        believed={},
    )


def _why_without_estimates(search: SearchSpec | None) -> str:
    if search is None:
        return "there is no search, whose space a model could be fitted to"
    if len(search.objectives) > 1:
        return "a search with several objectives has none"
    return f"needs {estimates.FEWEST} finished trials that started from the same policy, or all from nothing"
