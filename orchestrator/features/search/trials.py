"""The trials of a run directory, as commands and reports show them: read from the ledger, what is
new at each call.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from orchestrator.core import job_parts
from orchestrator.core.job import META, TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import search_events
from orchestrator.features.search.course import Course
from orchestrator.features.search.declaration.declared_search import SearchDeclaration
from orchestrator.features.search.declaration.spec import Direction, SchedulerSpec, SearchSpec
from orchestrator.features.search.declaration.written import (
    chosen_sampler,
    read_declaration,
    unreadable,
)
from orchestrator.features.search.event_contents import REFERENCE
from orchestrator.features.search.history import History, Trial, costs, ranked_trials
from orchestrator.features.search.racing import Shrunken, believed, by_belief
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.jobfile.validation import check
from orchestrator.keys.problems import Problems
from orchestrator.ledger import Ledger, SummaryRow, job_figures

OF_PLAIN_JOBS = "eval_mean"
"""What the jobs of an experiment without a search are compared by."""


class _OnFront(NamedTuple):
    """A trial of the Pareto front; in their order the best by the first objective comes first."""

    costs: Sequence[float]
    place: int
    """Of the trial among those of the search itself."""
    trial: Trial


@dataclass(slots=True, kw_only=True)
class TrialReader:
    """What a search was declared as, and what has become of its trials; :meth:`update` reads on."""

    paths: RunPaths
    search: SearchSpec | None
    """None where the jobs of a matrix are compared at rungs (``[scheduler]`` alone)."""
    scheduler: SchedulerSpec | None
    history: History = field(default_factory=History)
    course: Course = field(default_factory=Course)
    totals: dict[str, int] = field(default_factory=dict)
    """``total_timesteps`` of every job of a trial, by ``job_id``."""
    env_steps: int = 0
    """Of all jobs, trained so far, where the budget limits them; counted for that only."""
    _done_steps: int = 0
    """``total_timesteps`` of all jobs of finished trials."""
    _front: Sequence[_OnFront] = ()
    """The trials of :attr:`front`, in any order."""
    _failing: list[Trial] = field(default_factory=list)
    """Failed trials of which some jobs may not have ended yet."""

    @classmethod
    def of(cls, paths: RunPaths) -> TrialReader | None:
        """A reader that has read no trial yet; None where neither a search nor a scheduler has been
        declared.

        :raises LedgerError: the declaration cannot be read.
        """
        if not SearchPaths(paths.root).declaration.exists():
            return None
        declaration = read_declaration(paths)
        problems = Problems()
        try:
            top = check(declaration["data"], problems).top
            declared = SearchDeclaration.of_tables(top, problems)
        except (ValueError, KeyError, TypeError) as error:
            raise unreadable(paths, error) from error
        if declared is None:
            return None
        declared = declared.begun_with(chosen_sampler(declaration))
        return cls(
            paths=paths,
            search=declared.search,
            scheduler=declared.scheduler,
            history=History(search=declared.search),
            course=Course(directions=() if declared.search is None else declared.search.directions),
        )

    @classmethod
    def updated(cls, paths: RunPaths, ledger: Ledger) -> TrialReader | None:
        """A reader that has read all trials so far; None also where the job file no longer declares
        what has begun here.

        :raises LedgerError: the declaration, or the ledger, cannot be read.
        """
        reader = cls.of(paths)
        if reader is None:
            return None
        reader.update(ledger)
        return None if reader.history.is_withdrawn else reader

    def update(self, ledger: Ledger) -> Sequence[SearchEvent]:
        """Take in what the search has done beyond what is known. Return that.

        :raises LedgerDamagedError: some of it cannot be read, or contradicts what is known; another
            reader is needed then.
        """
        events = search_events.events(self.paths, after=self.history.last_id)
        known = len(self.history.trials)
        for event in events:
            self.history.take_in([event], SearchPaths(self.paths.root).events)
            self.course.note(event, self.history)
        # It has begun again, perhaps with another budget.
        if any(event.kind == "began" for event in events):
            declared = TrialReader.of(self.paths)
            if declared is not None:
                self.search = declared.search
        new = self.history.trials[known:]
        self.totals |= job_figures.totals(ledger, [id_ for trial in new for id_ in trial.jobs])
        for number in dict.fromkeys(event.trial for event in events if event.kind == "over"):
            assert number is not None
            self._end(self.history.trials[number])
        if self._is_raced and any(event.kind == "over" for event in events):
            # Every value changes what is believed of all trials.
            leaders = ranked(self.history.asked, self.directions, self.search)[:1]
            self._front = [self._on_front(trial) for trial in leaders]
        self._count_failing(ledger)
        if self.search is not None and self.search.max_env_steps is not None:
            self.env_steps = job_figures.env_steps(ledger)
        return events

    def _end(self, trial: Trial) -> None:
        """Count ``trial``, which is over."""
        if trial.values is None:
            self._failing.append(trial)
        elif trial.is_of_search:  # others have no rungs
            self._done_steps += self._total(trial)
        if not trial.is_of_search or not trial.values or self.search is None or self._is_raced:
            return
        new = self._on_front(trial)
        if not any(_surpasses(one.costs, new.costs) for one in self._front):
            others = [one for one in self._front if not _surpasses(new.costs, one.costs)]
            self._front = [*others, new]
            if len(self.directions) == 1:
                self._front = [min(self._front)]

    def _on_front(self, trial: Trial) -> _OnFront:
        return _OnFront(costs(trial, self.directions), trial.index, trial)

    @property
    def _is_raced(self) -> bool:
        return self.search is not None and self.search.race is not None

    def _total(self, trial: Trial) -> int:
        """``total_timesteps`` of its jobs, as far as the ledger still has them."""
        return sum(self.totals.get(job_id, 0) for job_id in trial.jobs)

    def _count_failing(self, ledger: Ledger) -> None:
        """Count what other seeds of failed trials have trained until they were cancelled."""
        failing = [trial for trial in self._failing if trial.number in self.history.failed]
        found = job_figures.figures(ledger, [job_id for trial in failing for job_id in trial.jobs])
        self._failing.clear()
        for trial in failing:
            figures = [found[job_id] for job_id in trial.jobs if job_id in found]
            trial.env_steps = max(trial.env_steps, sum(one.env_steps for one in figures))
            if not {one.state for one in figures} <= set(TERMINAL):
                self._failing.append(trial)

    @property
    def front(self) -> Sequence[Trial]:
        """The best finished trial, with a race by what is believed of it; of several objectives, the
        Pareto front as :func:`best` ranks it; none where there is no search.
        """
        return [one.trial for one in sorted(self._front)]

    @property
    def objectives(self) -> Sequence[str]:
        return (OF_PLAIN_JOBS,) if self.search is None else self.search.objectives

    @property
    def directions(self) -> Sequence[Direction]:
        return ("maximize",) if self.search is None else self.search.directions

    @property
    def rungs(self) -> Sequence[int]:
        """env_steps of each job at which trials are compared."""
        if self.scheduler is None:
            return ()
        lengths = [
            self.totals[job_id]
            for trial in self.asked
            for job_id in trial.jobs
            if job_id in self.totals
        ]
        return self.scheduler.rungs(max(lengths)) if lengths else ()

    @property
    def asked(self) -> list[Trial]:
        """The trials without those that repeat one, each with its further seeds."""
        return self._with_further_seeds(self.history.asked)

    @property
    def trials(self) -> list[Trial]:
        """All of them, each with its further seeds."""
        return self._with_further_seeds(
            [trial for trial in self.history.trials if not trial.is_further_seed]
        )

    def _with_further_seeds(self, trials: list[Trial]) -> list[Trial]:
        return list(map(with_further_seeds, trials)) if self.history.further else trials

    @property
    def repeated(self) -> Mapping[int, Trial]:
        """By the number of a trial: the one that has trained its point again, from nothing and with
        other seeds; of several the last one with values. Those that were trained otherwise than is
        declared are left out.
        """
        return {} if self.search is None else repeated_in(self.history.trials, self.search)

    @property
    def reference(self) -> Trial | None:
        """The unchanged job, trained as :attr:`repeated` trials are, of several trainings the last
        one with values; None where it is not.
        """
        if self.search is None:
            return None
        found: Trial | None = None
        for trial in self.history.trials:
            if trial.role == REFERENCE and _is_as_declared(trial, self.search):
                found = _later(found, trial)
        return found

    @property
    def waiting(self) -> Collection[Trial]:
        """Those that stand at a rung."""
        return self.history.waiting.values()

    @property
    def failed(self) -> int:
        """Number of trials that have failed, without those that repeat one."""
        return sum(trial.is_of_search for trial in self.history.failed.values())

    def state(self, trial: Trial) -> str:
        """``finished``, ``failed``, ``waiting`` (at a rung) or ``training`` (or queued for it)."""
        if trial.is_over:
            return "failed" if trial.values is None else "finished"
        return "waiting" if trial.is_waiting else "training"

    def best(self, number: int | None = None) -> list[Trial]:
        """Finished trials as :func:`best` ranks them, at most ``number`` of them; none where there
        is no search. Those that were trained again come first, as that training; with a race, the
        others are in the order of what that believes.
        """
        if self.search is None:
            return []
        return judged_first(self.asked, self.repeated, self.directions, self.search)[:number]

    @property
    def believed(self) -> Mapping[int, Shrunken]:
        """What the seeds of finished trials say of them, by number; empty where there is no race."""
        return believed(self.history.asked, self.search)

    @property
    def saved_share(self) -> float | None:
        """Share of the env_steps of training all finished and waiting trials to the end that was
        not trained.

        None before one of them is there.
        """
        waiting = self.waiting
        of_waiting = sum(map(self._total, waiting))
        left = of_waiting - sum(trial.env_steps for trial in waiting)
        whole = of_waiting + self._done_steps
        return left / whole if whole else None


def repeated_in(trials: Iterable[Trial], search: SearchSpec) -> dict[int, Trial]:
    """As :attr:`TrialReader.repeated`. :param trials: all of the search."""
    found: dict[int, Trial] = {}
    for trial in trials:
        number = trial.reevaluates
        if number is not None and trial.is_reevaluation and _is_as_declared(trial, search):
            found[number] = _later(found.get(number), trial)
    return found


def _is_as_declared(trial: Trial, search: SearchSpec) -> bool:
    """Whether ``trial`` was trained as the job file says that the best are trained again; where it
    says so no longer, whatever it was trained like.
    """
    return search.reevaluate == 0 or trial.protocol == search.reevaluation.protocol


def _later(known: Trial | None, trial: Trial) -> Trial:
    """The one of two trainings that counts: the later one, unless only the earlier has values."""
    return known if known is not None and known.values and not trial.values else trial


def with_further_seeds(trial: Trial) -> Trial:
    """``trial`` with the jobs and the env_steps of those further seeds that count in its value."""
    counted = trial.further_with_value
    if not counted:
        return trial
    return replace(
        trial,
        jobs=[*trial.jobs, *(job_id for one in counted for job_id in one.jobs)],
        env_steps=trial.env_steps + sum(one.env_steps for one in counted),
    )


def failed_further_seeds(trials: Iterable[Trial]) -> list[Trial]:
    """Further seeds of these trials that have failed, which have no part in their values."""
    return [one for trial in trials for one in trial.further if one.is_over and not one.values]


def judged_apart(
    trials: Iterable[Trial], repeated: Mapping[int, Trial]
) -> tuple[list[Trial], list[Trial]]:
    """Those that were trained again, each with values, jobs and env_steps of that training, which
    has no parent, and its own values as :attr:`.Trial.in_search`; and the others.

    :param repeated: as in :attr:`TrialReader.repeated`.
    """
    judged = []
    others = []
    for trial in trials:
        again = repeated.get(trial.number)
        if again is not None and again.values:
            judged.append(
                replace(
                    trial,
                    values=again.values,
                    in_search=trial.values,
                    jobs=again.jobs,
                    env_steps=again.env_steps,
                    parent=again.parent,
                )
            )
        else:
            others.append(trial)
    return judged, others


def judged_first(
    trials: Sequence[Trial],
    repeated: Mapping[int, Trial],
    directions: Sequence[Direction],
    search: SearchSpec | None,
) -> list[Trial]:
    """The finished ones of ``trials``: those that were trained again first, as that training, in the
    order of :func:`best`; then the others, in that of :func:`ranked`.

    :param trials: all that are searched among.
    :param repeated: as in :attr:`TrialReader.repeated`.
    """
    judged, others = judged_apart(trials, repeated)
    return [*best(judged, directions), *ranked(others, directions, search, among=trials)]


def best(trials: Iterable[Trial], directions: Sequence[Direction]) -> list[Trial]:
    """The finished ones of ``trials``: all of them, or the Pareto front of several objectives; the
    best first.

    In a front that is by the first objective. Of equal ones the earlier comes first.
    """
    in_order = ranked_trials(trials, directions)
    if len(directions) == 1:
        return in_order
    front: list[Trial] = []
    for trial in in_order:  # whatever surpasses it has come before
        mine = costs(trial, directions)
        if not any(_surpasses(costs(other, directions), mine) for other in front):
            front.append(trial)
    return front


def ranked(
    trials: Sequence[Trial],
    directions: Sequence[Direction],
    search: SearchSpec | None,
    *,
    among: Sequence[Trial] | None = None,
) -> list[Trial]:
    """The finished ones of ``trials`` as :func:`best` ranks them; with a race, in the order of what
    that believes of them.

    :param among: all that are searched among, where ``trials`` are some of these.
    """
    worth = believed(trials if among is None else among, search)
    return by_belief(best(trials, directions), worth, directions[0])


def _surpasses(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def lineage_env_steps(ledger: Ledger, chosen: Iterable[Trial]) -> dict[int, int | None]:
    """By the number of each of these trials: its env_steps, with those of the policies that its jobs
    started from one after another; None: not known. A policy that several of its jobs started from
    counts for each of them.
    """
    trials = list(chosen)
    earlier = job_figures.earlier_env_steps(ledger, [one for trial in trials for one in trial.jobs])
    return {
        trial.number: with_earlier(trial, [earlier.get(job_id) for job_id in trial.jobs])
        for trial in trials
    }


def with_earlier(trial: Trial, earlier: Sequence[int | None]) -> int | None:
    """env_steps of ``trial``, with those of the policies that its jobs started from.

    :param earlier: those, of each job; None: not known.
    """
    known = [env_steps for env_steps in earlier if env_steps is not None]
    return trial.env_steps + sum(known) if len(known) == len(earlier) else None


def of_plain_jobs(rows: Sequence[SummaryRow]) -> list[Trial]:
    """The jobs of an experiment without a search as trials, those that differ in their seed alone
    together, whatever a program says of each of them.

    They are finished when all of their jobs have an evaluation; their value is its median.
    """
    own = {*SummaryRow.__annotations__, *job_parts.column_names()}
    together: dict[str, tuple[list[dict[str, Any]], list[SummaryRow]]] = {}
    for row in rows:
        point = {key: value for key, value in row.items() if key not in own}
        varied = {key: value for key, value in point.items() if not key.startswith(META)}
        points, of_seeds = together.setdefault(repr((row["name"], varied)), ([], []))
        points.append(point)
        of_seeds.append(row)
    trials = []
    for number, (points, of_seeds) in enumerate(together.values()):
        means = [row["eval_mean"] for row in of_seeds]
        numbers = [mean for mean in means if mean is not None]
        is_over = len(numbers) == len(means) and all(
            row["state"] == "SUCCEEDED" for row in of_seeds
        )
        trials.append(
            Trial(
                number=number,
                point=_common_items(points),
                jobs=[row["job_id"] for row in of_seeds],
                values=[statistics.median(numbers)] if is_over else None,
                env_steps=sum(row["env_steps"] for row in of_seeds),
                is_over=is_over,
            )
        )
    return trials


def _common_items(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all ``points`` have, with the same value."""
    first, *others = points
    return {
        key: value
        for key, value in first.items()
        if all(key in point and point[key] == value for point in others)
    }
