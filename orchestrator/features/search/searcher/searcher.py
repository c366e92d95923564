"""The searcher: a process beside the supervisor that makes the jobs of a search, and decides which
of them go on.

    python -m orchestrator.features.search.searcher.searcher RUN_DIR JOBS_AT_ONCE

It is a client: it requests new jobs and promotions of the supervisor, and enters each request
together with the event that says so in its database, in one transaction. Killed at any moment, another searcher
restores from the events what it knew, sends the requests that were not answered, and goes on with
the same next point. It ends when its standard input does: with the supervisor.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from orchestrator.core.errors import (
    LedgerUnavailableError,
    OrchestratorError,
    SpecError,
    UsageError,
)
from orchestrator.core.job import TERMINAL, Cause, Job
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import shortened
from orchestrator.experiment import run_directory
from orchestrator.features.search import (
    changed_search,
    search_events,
    search_robots,
    shown_trials,
)
from orchestrator.features.search.constraint_check import PointMeasurer
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.constraints import ConstraintCheck
from orchestrator.features.search.declaration.declared_search import (
    compared_job,
    declaration_of,
    points_to_begin_with,
    start_job,
    trial_jobs,
)
from orchestrator.features.search.declaration.spec import SchedulerSpec, SearchSpec
from orchestrator.features.search.event_contents import RACED
from orchestrator.features.search.history import History, Trial, commonest
from orchestrator.features.search.queued_ahead import queued_ahead, queued_late
from orchestrator.features.search.search_events import SearchDatabase, SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.searcher import final_trainings, outcomes, schedulers
from orchestrator.features.search.searcher.further_seeds import (
    declared_seeds,
    further_seed,
    raced_trial,
)
from orchestrator.features.search.searcher.outbox import Outbox
from orchestrator.features.search.searcher.points_budget import SpentSteps, has_all_points
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.trial_examiner import TrialExaminer
from orchestrator.features.search.searcher.watchdog import Watchdog, tell
from orchestrator.jobfile import Experiment
from orchestrator.ledger import job_figures
from orchestrator.ledger.job_figures import Figures
from orchestrator.server.companions import CANNOT_GO_ON, DONE, WAITS_FOR_USER
from orchestrator.server.declaration import job_values
from orchestrator.server.entering import Addition, addition_args
from orchestrator.server.ledger import ServerLedger
from orchestrator.server.requests import Request

LOOK_EVERY_S = 0.05
LOOK_AT_ALL = Pace(every_s=2.0, share=0.01)
"""How often trials that do not train are looked at, too: perhaps the user has retried or cancelled
jobs of theirs."""
FIRST_FAILURES = 20
"""So many failures before the first success end a search: something is wrong with all of its
points."""
FAILURES_IN_A_ROW = 1000
"""So many failures after a success end a search, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Where trials are compared, by what, and which of them go on."""

    spec: SchedulerSpec
    rungs: Sequence[int]
    """env_steps of each, of at least one."""
    scheduler: schedulers.Scheduler


@dataclass(slots=True, kw_only=True)
class Searcher:
    """Makes trials until the budget is spent, and promotes paused ones, until nothing is left to
    train.
    """

    paths: RunPaths
    experiment: Experiment
    holder: str
    """The supervisor that requests are meant for."""
    watchdog: Watchdog
    ledger: ServerLedger = field(init=False)
    """Of the run: it is only read."""
    database: SearchDatabase = field(init=False)
    history: History = field(default_factory=History, init=False)
    _proposals: Proposals | None = field(default=None, init=False)
    _comparison: _Comparison | None = field(default=None, init=False)
    """None: all trials are trained to their end."""
    _is_closed: bool = field(default=False, init=False)
    """Whether the scheduler knows that there will be no more trials."""
    _has_news: bool = field(default=True, init=False)
    """Whether there may be something to decide, or to tell the sampler."""
    _no_seed_at: int = field(default=-1, init=False)
    """The last event as of which no trial was to get a further seed: that takes a while to find
    out."""
    _look_at_all: Pacer = field(default_factory=lambda: Pacer(LOOK_AT_ALL), init=False)
    _figures: dict[str, Figures] = field(default_factory=dict, init=False)
    """Of the jobs of trials that were looked at last: at least of those that train."""
    _search: SearchSpec | None = field(init=False)
    """None where the jobs of the job file are compared at rungs."""
    _examiner: TrialExaminer = field(init=False)
    _measurer: PointMeasurer = field(init=False)
    _outbox: Outbox = field(init=False)
    _known_robots: Sequence[str] = field(init=False)
    """What the robot may contain, if it is a file; empty if that is not known."""

    def __post_init__(self) -> None:
        self._examiner = TrialExaminer(paths=self.paths, watchdog=self.watchdog)
        self._measurer = PointMeasurer(experiment=self.experiment)
        declaration = written.read_declaration(self.paths)
        self._known_robots = list(search_robots.recorded_robots(declaration).values())
        self.database = SearchDatabase.open(SearchPaths(self.paths.root).events)
        self.ledger = ServerLedger.open(self.paths.ledger, read_only=True, is_sound=True)
        self._outbox = Outbox(
            paths=self.paths,
            database=self.database,
            ledger=self.ledger,
            holder=self.holder,
            watchdog=self.watchdog,
        )
        try:
            self._restore()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close both files."""
        self.database.close()
        self.ledger.abandon()

    def _restore(self) -> None:
        """Restore the state of the previous searcher by replaying its events.

        :raises LedgerDamagedError: an event cannot be read.
        """
        source = declaration_of(self.experiment)
        search = source.search
        scheduler = source.scheduler
        self._search = search
        self.history.search = search
        bracket = 1
        if scheduler is not None:
            self._comparison = _comparison(scheduler, search, self.experiment)
            bracket = scheduler.reduction ** len(self._comparison.rungs)
        if search is not None:
            base = self.experiment.base
            self._proposals = Proposals(
                search,
                SearchPaths(self.paths.root).sampler,
                base,
                bracket,
                self.watchdog,
                tells_at_rungs=scheduler is not None and scheduler.stands_for_end(search),
                initial=points_to_begin_with(self.experiment),
            )
        events = self.database.events()
        if self._proposals is not None and events:
            self._proposals.restore(events[-1].id)
        for event in events:
            self.watchdog.begin_step()
            self._apply(event)
            if self._proposals is not None:
                self._proposals.replay(event, self.history)

    def run(self) -> None:
        """Returns when the search is over, or when nothing but jobs that the user has paused is
        left.

        :raises UsageError: nothing can come of the search, with the reason.
        """
        began = SearchEvent(kind="began", content={"lanes": max(1, self.watchdog.jobs_at_once)})
        self._outbox.send()
        self._record([began])
        if self._proposals is None and not self.history.trials:
            self._take_declared_jobs()
        with contextlib.closing(self._examiner), contextlib.closing(self._measurer):
            seen = (0, 0)
            is_done = False
            while not (self.history.is_over or (is_done and self._waits_for_user())):
                self.watchdog.begin_step()
                now = job_figures.version(self.ledger), self.watchdog.jobs_at_once
                if now != seen or not is_done:
                    seen = now
                    is_done = not self._turn()
                else:
                    time.sleep(LOOK_EVERY_S)

    def _turn(self) -> bool:
        """Act on what is new in the ledger. Returns whether something was done."""
        self._take_in()
        done = self._look(at_all=self._look_at_all.is_due())
        self._close()
        if self._has_news and (self._proposals is not None or self._has_room()):
            # The jobs of a matrix come to their first rung before any goes on, as long as some
            # wait.
            self._has_news = False
            done |= self._promote()
            self._tell()
        if self._begin_start():
            done = True
        elif self._may_ask():
            self._train_next()
            done = True
        elif (trial := self._raced()) is not None:
            self._train_further_seed(trial)
            done = True
        self._refuse_if_hopeless()
        if self._proposals is not None:
            self._proposals.save(self.history.last_id)
        is_idle = not (done or self.history.training)
        if is_idle and self._is_spent():
            if not self._look(at_all=True):
                self._end()
            done = True
        return done

    # -- what has happened

    def _look(self, *, at_all: bool) -> bool:
        """Enter what has become of the trials that train. Returns whether that was something.

        :param at_all: also what the user has done to jobs of trials that wait at rungs or have
            failed.
        """
        training = self.history.training.values()
        if not at_all:
            return self._record_any(*self._ends([*training]))
        with self._look_at_all.time_block():
            events, requests = self._ends([*training, *self.history.waiting.values()])
            retried, retries = outcomes.retry_events(self.ledger, self.history.failed.values())
            return self._record_any(events + retried, requests + retries)

    def _record_any(self, events: list[SearchEvent], requests: list[Request]) -> bool:
        """Record ``events``, if there are any. Returns whether there are."""
        if events:
            self._record(events, requests)
        return bool(events)

    def _ends(self, trials: Sequence[Trial]) -> tuple[list[SearchEvent], list[Request]]:
        """Those of the ``trials``, which are not over, that have come to a rung or to their end."""
        self._figures = job_figures.figures(
            self.ledger, [job_id for trial in trials for job_id in trial.jobs]
        )
        events = list[SearchEvent]()
        requests = list[Request]()
        for trial in trials:
            figures = [self._figures.get(job_id, outcomes.GONE) for job_id in trial.jobs]
            states = {one.state for one in figures}
            if states == {"SUCCEEDED"}:
                events.append(outcomes.over(self.ledger, self._search, trial))
            elif states & {"FAILED", "CANCELLED"}:
                events.append(outcomes.failed_event(trial, figures))
                unfinished = [
                    id_
                    for id_, one in zip(trial.jobs, figures, strict=True)
                    if one.state not in TERMINAL
                ]
                requests += [Request(verb="cancel", jobs=[job_id]) for job_id in unfinished]
            elif states == {"PAUSED"} and not trial.is_waiting and self._is_at_rung(trial, figures):
                events.append(self._reached_event(trial, figures))
        return events, requests

    def _reached_event(self, trial: Trial, figures: Sequence[Figures]) -> SearchEvent:
        assert self._comparison is not None
        spec = self._comparison.spec
        measures = (
            job_figures.training_measures(self.ledger, trial.jobs) if spec.measures_training else {}
        )
        return outcomes.reached_event(self._search, spec.by, trial, figures, measures)

    def _is_at_rung(self, trial: Trial, figures: Sequence[Figures]) -> bool:
        """Whether its jobs, all paused, have come to the rung that it is trained to; else the user
        pauses them.
        """
        if self._comparison is None or not trial.is_of_search:
            return False
        rungs = self._comparison.rungs
        return trial.goal < len(rungs) and all(
            one.env_steps >= rungs[trial.goal] for one in figures
        )

    def _tell(self) -> None:
        """Tell the sampler of trials that are over, and of those that a rung has rejected for
        now.
        """
        if self._proposals is None:
            return
        for trial in self._proposals.to_tell_at_once(self.history):
            self._record([outcomes.told_event(trial)])

    def _seems_hopeless(self) -> bool:
        """Whether so many trials have failed before the first success that no other is begun: what
        still trains is waited for.
        """
        return not self.history.has_succeeded and len(self.history.whys) >= FIRST_FAILURES

    def _refuse_if_hopeless(self) -> None:
        if self._search is None:
            return
        has_failed_at_first = self._seems_hopeless() and not self.history.training
        if has_failed_at_first or len(self.history.whys) >= FAILURES_IN_A_ROW:
            whys = list(self.history.whys.values())
            most = commonest(whys)
            raise UsageError(
                f"the last {len(whys)} trials have failed, {most.times} of them as this one: {whys[most.place]}"
            )

    def _waits_for_user(self) -> bool:
        """Whether nothing can go on before the user resumes jobs that they have paused."""
        is_paused = False
        for trial in self.history.training.values():
            for figures in [self._figures[job_id] for job_id in trial.jobs]:
                if figures.cause == Cause.RUNG:
                    if not self._is_at_rung(trial, [figures]):
                        return False  # it is being promoted
                elif figures.state == "PAUSED":
                    is_paused = True
                elif figures.state not in TERMINAL:
                    return False
        return is_paused and not self._may_ask() and not self._others_are_trained()

    def _others_are_trained(self) -> bool:
        """Whether jobs train, or are due, that are of no trial in training: further seeds of one
        that has failed, or what is trained again as its results are gone.
        """
        counts = self.ledger.counts()
        return counts.get("PENDING", 0) + counts.get("RUNNING", 0) > 0

    # -- what happens next

    def _promote(self) -> bool:
        """Let the best at rungs go on."""
        if self._comparison is None:
            return False
        rungs = self._comparison.rungs
        events = []
        requests = []
        for promotion in self._comparison.scheduler.decisions():
            goal = len(rungs) if promotion.rung is None else promotion.rung
            args = {"pause_at": None if promotion.rung is None else rungs[goal]}
            trial = self.history.asked[promotion.trial]
            events.append(SearchEvent(kind="promoted", trial=trial.number, content={"goal": goal}))
            requests += [Request(verb="resume", jobs=[id_], args=args) for id_ in trial.jobs]
        if events:
            self._record(events, requests)
        return bool(events)

    def _may_ask(self) -> bool:
        proposals = self._proposals
        if proposals is None or self._is_spent() or not self._has_start():
            return False
        if self._seems_hopeless():
            return False
        if proposals.in_order:
            return proposals.is_next_known(self.history)
        return self._has_room()

    def _has_start(self) -> bool:
        """Whether there is what trials start from.

        :raises UsageError: it could not be trained.
        """
        if self._search is None or self._search.start != "reference":
            return True
        start = self.history.start
        if start is not None and start.is_over and start.failed_jobs:
            what = (
                f"the unchanged job, from whose policy every trial starts, has failed: {start.why}"
            )
            raise UsageError(f"{what}; `retry` trains {start.failed_jobs[0]} again")
        return start is not None and start.is_over

    def _begin_start(self) -> bool:
        """Train what trials start from, if they do. Returns whether that was to be begun."""
        if self._search is None or self._search.start != "reference" or self.history.trials:
            return False
        self._enter({}, [start_job(self.experiment)], others={"role": "start"})
        return True

    def _has_room(self) -> bool:
        """Whether fewer jobs wait than are to be queued ahead."""
        sampler = None if self._search is None else self._search.sampler
        return self._waiting < queued_ahead(sampler, self.watchdog.jobs_at_once)

    @property
    def _waiting(self) -> int:
        """How many jobs wait for a slot."""
        return sum(one.state == "PENDING" for one in self._figures.values())

    def _is_spent(self) -> bool:
        """Whether there will be no further trial: a part of the budget is used up, or there is no
        search.
        """
        search = self._search
        return search is None or has_all_points(search, self.history, self._count_steps)

    def _count_steps(self) -> SpentSteps:
        seeds = [job_id for one in self.history.further for job_id in one.jobs]
        figures = job_figures.figures(self.ledger, seeds) if seeds else {}
        return SpentSteps(
            all=job_figures.env_steps(self.ledger),
            of_seeds=sum(one.env_steps for one in figures.values()),
        )

    def _train_next(self) -> None:
        """Begin a trial with a new point."""
        assert self._proposals is not None
        for trial in self._proposals.to_tell(self.history):
            self._record([outcomes.told_event(trial)])
        self._ask()

    def _raced(self) -> Trial | None:
        """The trial that gets a further seed now, as there will be no other new point."""
        search = self._search
        if search is None or search.race is None or not self._is_spent():
            return None
        history = self.history
        if search.max_time_s is not None and history.elapsed_s >= search.max_time_s:
            return None
        if self._no_seed_at == history.last_id or not self._may_race(search):
            return None
        trial = self._racing_trial(search)
        if trial is None:
            self._no_seed_at = history.last_id
        return trial

    def _may_race(self, search: SearchSpec) -> bool:
        """Whether as much is known, or as little waits, as is to be when a further seed is begun."""
        if search.order != "fixed":
            return self._waiting < queued_late(self.watchdog.jobs_at_once)
        decisive = self._decisive_seeds()
        return not any(
            one.is_of_search or one.number in decisive for one in self.history.training.values()
        )

    def _racing_trial(self, search: SearchSpec) -> Trial | None:
        history = self.history
        if search.order != "fixed":
            return raced_trial(search, history, lambda _: True)
        decisive = self._decisive_seeds()
        trial = raced_trial(search, history, lambda one: one.is_of_search or one.number in decisive)
        if trial is None and not history.training:
            return raced_trial(search, history, lambda _: True)
        return trial

    def _decisive_seeds(self) -> set[int]:
        """Numbers of the further seeds that decide on the next one with order = "fixed"."""
        history = self.history
        return {one.number for one in history.further[: -max(1, history.jobs_at_once)]}

    def _train_further_seed(self, trial: Trial) -> None:
        """Train the point of ``trial`` as it was trained, with the next seed."""
        assert self._proposals is not None
        seeds = [further_seed(trial, declared_seeds(self.experiment, trial))]
        jobs = trial_jobs(self.experiment, trial.number, trial.point, seeds)
        parent = self._proposals.parent(trial.point, self.history)
        self._enter(
            trial.point,
            jobs,
            parent=parent,
            others={"role": RACED, "reevaluates": trial.number},
        )

    def _ask(self) -> None:
        assert self._proposals is not None
        number = len(self.history.trials)
        proposed = self._proposals.next_point(self.history, self._check_point)
        point = proposed.point
        try:
            jobs = trial_jobs(self.experiment, number, point)
        except SpecError as error:  # values that do not fit together
            self._record_unmade(point, error, proposed.facts)
            return
        parent = self._proposals.parent(point, self.history)
        self._enter(point, jobs, parent=parent, others=proposed.facts)

    def _record_unmade(
        self, point: Mapping[str, Any], error: SpecError, others: Mapping[str, Any]
    ) -> None:
        """Record a trial that has failed, as its jobs could not be made.

        :param others: further content of the event.
        """
        why = shortened("; ".join(map(str, error.problems)))
        failed = {"values": None, "measures": None, "env_steps": 0, "why": why}
        asked = SearchEvent(kind="asked", content={"point": dict(point), "jobs": [], **others})
        number = len(self.history.trials)
        self._record([asked, SearchEvent(kind="over", trial=number, content=failed)])

    def _check_point(self, point: Mapping[str, Any]) -> ConstraintCheck:
        """Whether ``point`` may be a trial: its body satisfies the constraints, and can be made."""
        self.watchdog.begin_step()
        (found,) = self._measurer.check([point], self.watchdog.begin_step)
        return found

    def _enter(
        self,
        point: Mapping[str, Any],
        jobs: Sequence[Job],
        *,
        parent: Trial | None = None,
        others: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Begin a trial: let its jobs be added.

        :param parent: whose policies it starts from, if they fit.
        :param others: further content of the event, such as the trial that it repeats.
        """
        is_of_search = "reevaluates" not in others and "role" not in others
        if self._comparison is not None and is_of_search:
            spec = self._comparison.spec
            first = self._comparison.rungs[0]
            jobs = [compared_job(job, spec, first) for job in jobs]
        if parent is not None:
            children = self._examiner.with_parent(jobs, parent)
            if children is None:
                parent = None
            else:
                jobs = children
        content: dict[str, Any] = {
            "point": dict(point),
            "jobs": [job.job_id for job in jobs],
            "parent": None if parent is None else parent.number,
            **others,
        }
        addition = Addition(
            jobs=[job_values(job) for job in jobs],
            skip_invalid=True,
            order="as-listed",
            source=self.experiment.source,
            known_robots=self._known_robots,
        )
        request = Request(verb="add", args=addition_args(addition))
        self._record([SearchEvent(kind="asked", content=content)], [request])

    def _take_declared_jobs(self) -> None:
        """The trials of a job file without a search: its jobs, those that differ in their seed
        alone together.
        """
        trials: dict[str, list[Job]] = {}
        for job in self.experiment.jobs:
            trials.setdefault(job.work, []).append(job)
        contents = [
            {"point": dict(jobs[0].point), "jobs": [job.job_id for job in jobs]}
            for jobs in trials.values()
        ]
        self._record([SearchEvent(kind="asked", content=content) for content in contents])

    def _close(self) -> None:
        """Let the scheduler know once that there will be no more trials: it may have waited for
        them.
        """
        if self._comparison is not None and not self._is_closed and self._is_spent():
            self._is_closed = True
            self._has_news = True
            self._comparison.scheduler.no_more(len(self.history.asked))

    def _end(self) -> None:
        """Train the best again, or end the search where that has been done."""
        search = self._search
        if search is not None:
            if self._begin_final_trainings(search):
                return
            shown_trials.note(self.paths, self.history.trials, search)
        self._record([SearchEvent(kind="ended", content={})])

    def _begin_final_trainings(self, search: SearchSpec) -> bool:
        """Begin those that have not begun. Returns whether there were any."""
        found = final_trainings.missing(self.experiment, search, self.history)
        for one in found:
            number = len(self.history.trials)
            try:
                jobs = one.jobs(self.experiment, number)
            except SpecError as error:  # values that do not fit to the length of this training
                self._record_unmade(one.point, error, one.event_fields)
                continue
            self._enter(one.point, jobs, others=one.event_fields)
        return bool(found)

    # -- the record

    def _record(self, events: Sequence[SearchEvent], requests: Sequence[Request] = ()) -> None:
        """Enter events and requests, all or nothing, and send the requests."""
        self.watchdog.begin_step()
        self.database.add(events)
        self._outbox.put(requests)
        self.database.commit()
        if requests:
            self._outbox.send()
        self._take_in()

    def _take_in(self) -> None:
        """Learn of the events that have been entered since."""
        for event in self.database.events(after=self.history.last_id):
            self._apply(event)
            if event.kind == "told" and self._proposals is not None:
                self._proposals.tell(event, self.history)

    def _apply(self, event: SearchEvent) -> None:
        self.history.take_in([event], self.database.path)
        self._has_news = True
        if self._comparison is None or event.trial is None:
            return
        trial = self.history.trials[event.trial]
        if not trial.is_of_search:
            return
        scheduler = self._comparison.scheduler
        rungs = len(self._comparison.rungs)
        if len(trial.reached) > rungs:
            why = f"trial {trial.number} has reached {len(trial.reached)} rungs of {rungs}"
            raise search_events.damage_error(self.database.path, event.id, event.kind, why)
        if event.kind == "promoted":
            rung = trial.goal if trial.goal < rungs else None
            scheduler.promoted(trial.index, rung)
        elif event.kind == "reached":
            scheduler.reached(trial.index, len(trial.reached) - 1, trial.reached[-1])
        elif event.kind == "over" and event.content.get("failed"):
            # One that was trained and has no value of the objective is none of these: the next ones
            # would have none either, and all be trained to the end.
            scheduler.failed(trial.index)
        elif event.kind == "over":
            scheduler.ended(trial.index)
        elif event.kind == "retried":
            scheduler.retried(trial.index)


def _comparison(
    spec: SchedulerSpec, search: SearchSpec | None, experiment: Experiment
) -> _Comparison:
    longest = max(job.spec.total_timesteps for job in experiment.jobs_to_examine)
    rungs = spec.rungs(longest)
    order = "asynchronous" if search is None else search.order
    scheduler = schedulers.make(spec, order, len(rungs), spec.direction(search))
    return _Comparison(spec=spec, rungs=rungs, scheduler=scheduler)


def main(run_dir: str, jobs_at_once: str) -> int:
    watchdog = Watchdog(jobs_at_once=int(jobs_at_once))
    watchdog.start_on_standard_input()
    paths = RunPaths(Path(run_dir))
    try:
        experiment = changed_search.declared_experiment(paths)
        holder = run_directory.holder(paths)
        searcher = Searcher(
            paths=paths,
            experiment=experiment,
            holder="" if holder is None else holder.key,
            watchdog=watchdog,
        )
        with contextlib.closing(searcher):
            searcher.run()
        return DONE if searcher.history.is_over else WAITS_FOR_USER
    except OrchestratorError as error:
        tell(str(error))
        is_passing = isinstance(error, LedgerUnavailableError)
        return CANNOT_GO_ON if isinstance(error, UsageError) and not is_passing else 1


if __name__ == "__main__":
    code = 1
    try:
        code = main(*sys.argv[1:])
    except BaseException:
        with contextlib.suppress(Exception):  # what the sampler has made of standard error
            traceback.print_exc()
    with contextlib.suppress(Exception):  # what it has made of standard output
        sys.stdout.flush()
    os._exit(code)  # whatever threads a sampler has begun
