"""One search on a table of bodies, by the samplers, the rungs and the race of this program.

Where the sampler proposes a point, the nearest body that was not taken yet is trained; the sampler
is told where that is. Trainings follow each other, as on one core. What is known of trials, what
the sampler is told of them and when, what they are worth and which of them gets a further seed is
decided by the code of this program: a search is a history of events as in a ledger. A search never
spends more env_steps than its budget: it begins no trial whose way to the end of all comparisons it
could not pay. A race has its share of the budget after all trials.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bodies.body_samplers import BodySampler, body_sampler
from benchmarks.bodies.landscape import World
from orchestrator.features.search.declaration.spec import RaceSpec, SchedulerSpec, SearchSpec
from orchestrator.features.search.event_contents import RACED
from orchestrator.features.search.history import History, Trial
from orchestrator.features.search.racing import Rule, next_contender
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.searcher import outcomes, schedulers
from orchestrator.features.search.searcher.further_seeds import raced_trial
from orchestrator.features.search.searcher.proposals import Proposals
from orchestrator.features.search.searcher.schedulers import Promotion, Scheduler
from orchestrator.features.search.searcher.watchdog import Watchdog
from orchestrator.features.search.trial_values import aggregated_value

OBJECTIVE = "eval_mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How a search goes about it."""

    sampler: str
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1
    """Of a new trial."""
    scheduler: SchedulerSpec | None = None
    """None: every trial is trained to its end."""
    race: RaceSpec | None = None
    """Further seeds for trials that may be the best; at most as many as a body of the table has."""
    rule: Rule = next_contender
    """Of the race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A search that is over."""

    history: History
    bodies: Sequence[int]
    """Of the trials that the sampler was asked for."""
    env_steps: int
    """Of all trainings."""
    raced: int
    """env_steps of further seeds, among them."""

    @property
    def trials(self) -> Sequence[Trial]:
        """Those that the sampler was asked for, each with its further seeds."""
        return self.history.asked

    @property
    def finished(self) -> Sequence[Trial]:
        """Those that were trained to their end."""
        return [trial for trial in self.trials if trial.is_over]

    def body(self, trial: Trial) -> int:
        return self.bodies[trial.index]


def search(
    world: World, strategy: Strategy, *, budget: int, seed: int, trials: int | None = None
) -> Found:
    """:param budget: env_steps.
    :param trials: at most so many; None: as many as there are bodies.
    """
    bodies = world.landscape.bodies
    most = bodies if trials is None else min(trials, bodies)
    return _Search(world=world, strategy=strategy, budget=budget, seed=seed, most_trials=most).run()


@dataclass(slots=True, kw_only=True)
class _Search:
    world: World
    strategy: Strategy
    budget: int
    seed: int
    most_trials: int
    history: History = field(init=False)
    env_steps: int = field(default=0, init=False)
    raced: int = field(default=0, init=False)
    _limit: float = field(init=False)
    """env_steps that may be spent now: at first those of trials."""
    _spec: SearchSpec = field(init=False)
    _goals: Sequence[int] = field(init=False)
    """env_steps of a training at its rungs, and at its end."""
    _scheduler: Scheduler = field(init=False)
    _sampler: BodySampler = field(init=False)
    _proposals: Proposals = field(init=False)

    def __post_init__(self) -> None:
        landscape = self.world.landscape
        scheduler = self.strategy.scheduler
        # Without a scheduler: one whose first rung is the end, which is none.
        to_the_end = SchedulerSpec(kind="asha", min_env_steps=landscape.env_steps)
        compared = scheduler or to_the_end
        rungs = compared.rungs(landscape.env_steps)
        self._goals = [*rungs, landscape.env_steps]
        self._scheduler = schedulers.make(compared, "asynchronous", len(rungs), "maximize")
        race = self.strategy.race
        if race is not None:
            race = replace(race, seeds=min(race.seeds, self.world.most_seeds))
        spec = SearchSpec(
            space=landscape.space,
            sampler=self.strategy.sampler,
            sampler_options=self.strategy.sampler_options,
            seed=self.seed,
            objectives=(OBJECTIVE,),
            directions=("maximize",),
            max_env_steps=self.budget,
            race=race,
        )
        self._spec = spec
        self._limit = spec.share_of_points * self.budget
        self.history = History(search=spec)
        self._sampler = body_sampler(spec, landscape.places)
        self._proposals = Proposals(
            spec,
            Path("never-saved"),
            Path(),
            1,
            Watchdog(),
            tells_at_rungs=scheduler is not None and scheduler.stands_for_end(spec),
            sampler=self._sampler,
        )

    def run(self) -> Found:
        while self._promote() or self._train_next():
            pass
        self._scheduler.no_more(len(self.history.asked))
        self._limit = self.budget
        while self._promote() or self._add_seed():
            pass
        return Found(
            history=self.history,
            bodies=self._sampler.taken,
            env_steps=self.env_steps,
            raced=self.raced,
        )

    def _train_next(self) -> bool:
        """Whether another trial was trained: the sampler has been told of all trials before, except
        of those that have gone on from a rung."""
        for trial in self._proposals.to_tell_at_once(self.history):
            told = self._enter(outcomes.told_event(trial))
            self._proposals.tell(told, self.history)
        return self._begin_trial()

    def _enter(self, event: SearchEvent) -> SearchEvent:
        self.history.apply(event)
        return event

    @property
    def _left(self) -> float:
        return self._limit - self.env_steps

    # -- trials

    def _begin_trial(self) -> bool:
        """Whether there was a body, and budget, for another one."""
        index = len(self.history.asked)
        if index == self.most_trials:
            return False
        if not self._pays(self._cost(0), with_another=True):
            return False
        content = {"point": self._proposals.ask(index), "jobs": ["a"] * self.strategy.seeds}
        self._enter(SearchEvent(kind="asked", content=content))
        self._train(self.history.asked[index], 0)
        return True

    def _promote(self) -> bool:
        """Whether any trial went on."""
        promotions = self._scheduler.decisions()
        affordable = [one for one in promotions if self._cost(self._goal(one)) <= self._left]
        for promotion in affordable[:1]:
            goal = self._goal(promotion)
            trial = self.history.asked[promotion.trial]
            self._scheduler.promoted(promotion.trial, promotion.rung)
            self._enter(SearchEvent(kind="promoted", trial=trial.number, content={"goal": goal}))
            self._train(trial, goal)
        return bool(affordable)

    def _goal(self, promotion: Promotion) -> int:
        return len(self._goals) - 1 if promotion.rung is None else promotion.rung

    def _cost(self, goal: int) -> int:
        """env_steps of a trial on the way to a goal from that before it."""
        before = self._goals[goal - 1] if goal else 0
        return self.strategy.seeds * (self._goals[goal] - before)

    def _train(self, trial: Trial, goal: int) -> None:
        self.env_steps += self._cost(goal)
        each = self._goals[goal]
        body = self._sampler.taken[trial.index]
        seeds = range(self.strategy.seeds)
        if goal + 1 == len(self._goals):
            self._end(trial, [self.world.value(body, seed) for seed in seeds])
            self._scheduler.ended(trial.index)
            return
        returns = [self.world.mean_return(body, seed, each) for seed in seeds]
        value = aggregated_value(returns, self._spec.aggregate)
        content = {"value": value, "env_steps": each * len(seeds)}
        self._enter(SearchEvent(kind="reached", trial=trial.number, content=content))
        self._scheduler.reached(trial.index, goal, value)

    def _end(self, trial: Trial, of_seeds: Sequence[float]) -> None:
        """The jobs of ``trial`` have come to their end with these values."""
        content: dict[str, Any] = {
            "values": [aggregated_value(of_seeds, self._spec.aggregate)],
            "measures": [],
            "env_steps": self.world.landscape.env_steps * len(of_seeds),
            "why": "",
        }
        if self._spec.race is not None:
            content["of_seeds"] = of_seeds
        self._enter(SearchEvent(kind="over", trial=trial.number, content=content))

    def _pays(self, cost: int, *, with_another: bool) -> bool:
        """Whether there is budget for a training, and for all promotions after it.

        :param with_another: whether it is that of another trial.
        """
        left = self._left - cost
        if self._most_of_closing(len(self.history.asked) + with_another) <= left:
            return True  # without a look at the trials
        return self._cost_of_closing(with_another=with_another) <= left

    def _most_of_closing(self, trials: int) -> int:
        """env_steps of all promotions if none of the trials that are to go on had done so."""
        scheduler = self.strategy.scheduler
        factor = scheduler.factor if scheduler is not None and scheduler.kind == "asha" else 1
        cost = 0
        come = trials
        for goal in range(1, len(self._goals)):
            going_on = math.ceil(come / factor)
            cost += going_on * self._cost(goal)
            come = going_on + sum(len(trial.reached) > goal for trial in self.history.asked)
        return cost

    def _cost_of_closing(self, *, with_another: bool) -> int:
        """env_steps of all promotions that would follow if no more trials came, or only one more,
        which goes no further than the first rung.
        """
        if len(self._goals) == 1:
            return 0
        scheduler = copy.deepcopy(self._scheduler)
        trials = len(self.history.asked)
        last = {trial.index: trial.reached[-1] for trial in self.history.asked}
        if with_another:
            scheduler.reached(trials, 0, None)
            last[trials] = None
        scheduler.no_more(trials + with_another)
        cost = 0
        while promotions := scheduler.decisions():
            for promotion in promotions:
                cost += self._cost(self._goal(promotion))
                scheduler.promoted(promotion.trial, promotion.rung)
                if promotion.rung is None:
                    scheduler.ended(promotion.trial)
                else:
                    scheduler.reached(promotion.trial, promotion.rung, last[promotion.trial])
        return cost

    # -- further seeds

    def _add_seed(self) -> bool:
        """Whether a trial that may be the best got one."""
        cost = self.world.landscape.env_steps
        if self._spec.race is None or not self._pays(cost, with_another=False):
            return False
        raced = raced_trial(self._spec, self.history, lambda _: True, self.strategy.rule)
        if raced is None:
            return False
        seed = self.strategy.seeds + len(raced.further)
        content = {"point": raced.point, "jobs": ["a"], "reevaluates": raced.number, "role": RACED}
        self._enter(SearchEvent(kind="asked", content=content))
        body = self._sampler.taken[raced.index]
        self._end(self.history.trials[-1], [self.world.value(body, seed)])
        self.env_steps += cost
        self.raced += cost
        return True
