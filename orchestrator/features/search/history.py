"""What a search has done so far, rebuilt from its events: trials, rungs, and what the sampler was
told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.spec import Direction, SearchSpec, sign_of
from orchestrator.features.search.event_contents import OF_UNCHANGED_JOB, RACED, WITHOUT_TRIAL
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.trial_values import aggregated_value


@dataclass(slots=True, kw_only=True)
class Trial:
    """One point, evaluated by one job for each seed."""

    number: int
    point: Mapping[str, Any]
    jobs: Sequence[str]
    parent: int | None = None
    """The trial whose policies its own began with."""
    index: int = 0
    """Its number among the trials of the search itself, as :attr:`is_of_search` says."""
    draw: int = 0
    """The number that the sampler knows its point by."""
    rejected: int = 0
    """Points that were proposed before it and violate the constraints."""
    reevaluates: int | None = None
    """The trial whose point is trained again: from nothing and judged by itself, of which the sampler
    is told nothing; or with a further seed (see :attr:`role`)."""
    role: str = ""
    """One of :data:`~orchestrator.features.search.event_contents.ROLES`: the unchanged job is
    trained, or a point with a further seed; empty: a point is."""
    protocol: Mapping[str, Any] | None = None
    """How it is trained again, where that is another training than that of a trial."""
    reached: list[float | None] = field(default_factory=list)
    """Its value at each rung that it has reached."""
    goal: int = 0
    """Index of the rung that it is trained to; the number of rungs: to the end."""
    values: Sequence[float] | None = None
    """One for each objective, over all of its seeds; None while it is not over, and if it failed."""
    in_search: Sequence[float] | None = None
    """Where it stands for the training that has repeated it: its own values."""
    of_seeds: Sequence[float] = ()
    """By the first objective, of each of its own jobs; only where further seeds may come."""
    further: list[Trial] = field(default_factory=list)
    """Those that train its point with a further seed."""
    measures: Sequence[float] | None = None
    """One for each axis of the archive."""
    env_steps: int = 0
    """Of all its jobs, when it last reached a rung or ended."""
    is_over: bool = False
    why: str = ""
    """Why it failed."""
    failed_jobs: Sequence[str] = ()
    """Those that had FAILED or were CANCELLED then."""

    @property
    def is_of_search(self) -> bool:
        """Whether it is one of the trials that are searched among: none that repeats one, or that
        trains the unchanged job.
        """
        return self.reevaluates is None and not self.role

    @property
    def is_further_seed(self) -> bool:
        """Whether its value counts in that of the trial that it repeats."""
        return self.role == RACED

    @property
    def is_reevaluation(self) -> bool:
        """Whether a point is trained again at the end, and judged by that."""
        return self.reevaluates is not None and not self.is_further_seed

    @property
    def env_steps_a_job(self) -> float:
        """env_steps of each of its own jobs."""
        return self.env_steps / max(1, len(self.jobs))

    @property
    def further_with_value(self) -> list[Trial]:
        """Those of :attr:`further` that count in its value."""
        return [one for one in self.further if one.values]

    @property
    def seed_values(self) -> list[float]:
        """By the first objective, of all seeds that have a value; of a trial without further ones
        perhaps that of all of them together.
        """
        own = self.of_seeds or (self.values or ())[:1]
        further = [one.values[0] for one in self.further_with_value if one.values]
        return [*own, *further]

    @property
    def is_waiting(self) -> bool:
        """Whether it stands at a rung."""
        return not self.is_over and len(self.reached) > self.goal


def is_measured(trial: Trial) -> bool:
    """Whether it has finished with values."""
    return bool(trial.values) and all(map(math.isfinite, trial.values or ()))


class InconsistentEventError(ValueError):
    """An event contradicts those before it, or the declaration of its search."""


@dataclass(slots=True, kw_only=True)
class History:
    """The trials of a search, each a fold of its events."""

    search: SearchSpec | None = None
    """As it was declared, which events have to fit; None: that is not asked."""
    trials: list[Trial] = field(default_factory=list)
    training: dict[int, Trial] = field(default_factory=dict)
    """By number: those that train, or wait for a slot."""
    waiting: dict[int, Trial] = field(default_factory=dict)
    """By number: those that stand at a rung."""
    failed: dict[int, Trial] = field(default_factory=dict)
    """By number."""
    untold: dict[int, Trial] = field(default_factory=dict)
    """By number: those that the sampler has been told nothing of, though it is to be."""
    asked: list[Trial] = field(default_factory=list)
    """The trials of the search itself, as :attr:`Trial.is_of_search` says."""
    further: list[Trial] = field(default_factory=list)
    """Those that train a point with a further seed."""
    rejected: int = 0
    """Points that the sampler has proposed and that do not satisfy the constraints, or make no
    robot."""
    rejected_why: str = ""
    """What is wrong with the last of them, where that is known."""
    jobs_at_once: int = 0
    """Jobs that ran at once when it first began."""
    whys: dict[int, str] = field(default_factory=dict)
    """By number: why the trials of this session have failed that ended after its last success."""
    has_succeeded: bool = False
    """Whether any trial that is searched among has come to a rung or to its end, in any session."""
    without_value_at_rung: int = 0
    """How often a trial came to a rung without a value of what is compared there."""
    is_over: bool = False
    is_withdrawn: bool = False
    """It is over because the job file no longer declares it."""
    elapsed_s: float = 0.0
    """Time in which a searcher ran, between its first and its last event in each session."""
    points_s: float = 0.0
    """The part of it in which not only further seeds trained."""
    last_id: int = 0
    _at: float = 0.0

    @property
    def start(self) -> Trial | None:
        """The training of the unchanged job that all trials begin with; None where there is none
        yet.
        """
        return next((trial for trial in self.trials[:1] if trial.role == "start"), None)

    def take_in(self, events: Iterable[SearchEvent], path: Path) -> None:
        """Take in events, which come from the file ``path``.

        :raises LedgerDamagedError: one contradicts those before it; these are taken in.
        """
        for event in events:
            try:
                self.apply(event)
            except InconsistentEventError as error:
                raise search_events.damage_error(path, event.id, event.kind, str(error)) from error

    def apply(self, event: SearchEvent) -> None:
        """:raises InconsistentEventError: it contradicts those before it, and has no effect."""
        self._check(event)
        self.last_id = event.id
        if event.kind == "began":
            self.jobs_at_once = self.jobs_at_once or event.content["lanes"]
            self.is_over = False
            self.is_withdrawn = False
            self.whys.clear()
        elif not event.content.get(search_events.WITHDRAWN):  # a searcher has written it
            self._count_time(max(0.0, event.at - self._at))
        self._at = event.at
        if event.kind == "ended":
            self.is_over = True
            self.is_withdrawn = bool(event.content.get(search_events.WITHDRAWN))
        elif event.kind == "asked":
            self._begin(event.content)
        elif event.trial is not None:
            self._change(self.trials[event.trial], event)

    def _count_time(self, gap_s: float) -> None:
        """Count the time before an event that is not applied yet."""
        self.elapsed_s += gap_s
        only_seeds = self.further and all(one.is_further_seed for one in self.training.values())
        if not only_seeds:
            self.points_s += gap_s

    def _check(self, event: SearchEvent) -> None:
        content = event.content
        if event.kind in WITHOUT_TRIAL:
            self._refuse_unknown(content.get("parent"))
            self._refuse_unknown(content.get("reevaluates"))
            self._check_further_seed(content)
        else:
            assert event.trial is not None
            self._refuse_unknown(event.trial)
            self._check_result(self.trials[event.trial], event)
        if self.search is None:
            return
        is_of_point = content.get("role", "") not in OF_UNCHANGED_JOB
        if event.kind == "asked" and content["jobs"] and is_of_point:
            _check_point(content["point"], self.search)
        if event.kind in ("over", "told"):
            _check_number("values", content["values"], len(self.search.objectives))
            _check_number("measures", content["measures"], len(self.search.measures))

    def _refuse_unknown(self, trial: int | None) -> None:
        if trial is not None and not 0 <= trial < len(self.trials):
            raise InconsistentEventError(f"there is no trial {trial} before it")

    def _check_further_seed(self, content: Mapping[str, Any]) -> None:
        if content.get("role") != RACED:
            return
        number = content.get("reevaluates")
        if number is None or not self.trials[number].is_of_search:
            raise InconsistentEventError("a further seed is of no trial that is searched among")
        if not self.trials[number].of_seeds:
            raise InconsistentEventError(f"trial {number} has no values of its seeds before it")

    def _check_result(self, trial: Trial, event: SearchEvent) -> None:
        is_result = event.kind == "reached" or (
            event.kind == "over" and event.content["values"] is not None
        )
        if is_result and not trial.jobs:
            raise InconsistentEventError(
                f"trial {trial.number} has no jobs that could have come to that"
            )
        if event.kind == "reached" and trial.is_over:
            raise InconsistentEventError(f"trial {trial.number} is over before it")

    def _begin(self, content: Mapping[str, Any]) -> None:
        rejected = len(content.get("rejected", ())) + content.get("rejected_random", 0)
        self.rejected += rejected
        self.rejected_why = content.get("rejected_why", self.rejected_why)
        trial = Trial(
            number=len(self.trials),
            index=len(self.asked),
            draw=len(self.asked) + self.rejected,
            rejected=rejected,
            point=content["point"],
            jobs=content["jobs"],
            parent=content.get("parent"),
            reevaluates=content.get("reevaluates"),
            role=content.get("role", ""),
            protocol=content.get("protocol"),
        )
        self.trials.append(trial)
        self._sort_in(trial)
        if trial.is_of_search:
            self.asked.append(trial)
            self.untold[trial.number] = trial
        elif trial.is_further_seed:
            assert trial.reevaluates is not None
            self.further.append(trial)
            self.trials[trial.reevaluates].further.append(trial)
            self.untold[trial.number] = trial

    def _change(self, trial: Trial, event: SearchEvent) -> None:
        content = event.content
        match event.kind:
            case "reached":
                trial.reached.append(content["value"])
                self.without_value_at_rung += content["value"] is None
                trial.env_steps = content["env_steps"]
                self._succeed()
            case "promoted":
                trial.goal = content["goal"]
            case "told":
                self.untold.pop(trial.number, None)
            case "over":
                trial.is_over = True
                trial.why = content["why"]
                trial.env_steps = content["env_steps"]
                trial.values = content["values"]
                trial.of_seeds = content.get("of_seeds", ())
                trial.measures = content["measures"]
                trial.failed_jobs = content.get("failed", ())
                if trial.values is None:
                    self.whys[trial.number] = trial.why
                elif trial.is_of_search or trial.is_further_seed:
                    self._succeed()
                    self._count_further_seeds(trial)
            case "retried":
                trial.is_over = False
                trial.why = ""
                self.whys.pop(trial.number, None)
                if trial.is_further_seed:  # its failure was nothing to the sampler
                    self.untold[trial.number] = trial
        self._sort_in(trial)

    def _count_further_seeds(self, trial: Trial) -> None:
        """Let the value of a trial be that of all of its seeds, where ``trial`` is it or a further
        seed of it.
        """
        if trial.is_further_seed:
            assert trial.reevaluates is not None
            trial = self.trials[trial.reevaluates]
        if trial.further:
            trial.values = self.value_of(trial.seed_values)

    def value_of(self, seeds: Sequence[float]) -> list[float]:
        """The values of a trial whose seeds have these, as there is one objective."""
        value = aggregated_value(seeds, "median" if self.search is None else self.search.aggregate)
        assert value is not None
        return [value]

    def _succeed(self) -> None:
        self.has_succeeded = True
        self.whys.clear()

    def _sort_in(self, trial: Trial) -> None:
        for trials in (self.training, self.waiting, self.failed):
            trials.pop(trial.number, None)
        if trial.is_waiting:
            self.waiting[trial.number] = trial
        elif not trial.is_over:
            self.training[trial.number] = trial
        elif trial.values is None:
            self.failed[trial.number] = trial


def _check_point(point: Mapping[str, Any], search: SearchSpec) -> None:
    """:raises InconsistentEventError: it is none of the space."""
    for dimension in search.space:
        try:
            dimension.unit(point[dimension.key])
        except (KeyError, ValueError) as error:
            why = "missing" if isinstance(error, KeyError) else error
            raise InconsistentEventError(f"point: {dimension.key}: {why}") from error


def _check_number(key: str, values: Sequence[float] | None, expected: int) -> None:
    """:raises InconsistentEventError: there are ``values``, and not as many as ``expected``."""
    if values is not None and len(values) != expected:
        raise InconsistentEventError(f"{key}: expected {expected} of them, not {len(values)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonReason:
    """A reason that some trials have failed for."""

    place: int
    """Of the first trial with it, among those that were given."""
    times: int
    """How many of them have it."""


def common_reasons(whys: Iterable[str]) -> list[CommonReason]:
    """The most frequent first, of equally frequent ones that which comes first.

    Reasons that differ in numbers alone, such as those of the point, are the same.
    """
    places: dict[str, list[int]] = {}
    for place, why in enumerate(whys):
        places.setdefault(re.sub(r"[\d.]+", "0", why), []).append(place)
    found = [CommonReason(place=alike[0], times=len(alike)) for alike in places.values()]
    return sorted(found, key=lambda reason: reason.times, reverse=True)


def commonest(whys: Iterable[str]) -> CommonReason:
    """The most frequent of :func:`common_reasons`. :param whys: at least one."""
    return common_reasons(whys)[0]


def costs(trial: Trial, directions: Sequence[Direction]) -> tuple[float, ...]:
    """Its values for the first so many objectives, each the better the smaller it is."""
    pairs = zip(directions, trial.values or (), strict=False)
    return tuple(-sign_of(direction) * value for direction, value in pairs)


def ranked_trials(trials: Iterable[Trial], directions: Sequence[Direction]) -> list[Trial]:
    """The finished ones of ``trials``, the best by the first objective first, of equal ones by the
    next.

    Of equal ones the earlier comes first. With fewer ``directions`` than objectives the others do
    not count.
    """
    return sorted(
        (trial for trial in trials if trial.values), key=lambda trial: costs(trial, directions)
    )
