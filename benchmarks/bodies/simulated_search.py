"""One search on a table of bodies, by the samplers and the rungs of this program.

Where the sampler proposes a point, the nearest body that was not taken yet is trained; the sampler
is told where that is. Trainings follow each other, as on one core. A search never spends more
env_steps than its budget: it begins no trial whose way to the end of all comparisons it could not
pay.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.bodies.body_samplers import BodySampler, body_sampler
from benchmarks.bodies.landscape import World
from benchmarks.bodies.racing_rules import Rule
from orchestrator.features.search.declaration.spec import SchedulerSpec, SearchSpec
from orchestrator.features.search.racing import Contender, next_contender
from orchestrator.features.search.searcher import schedulers
from orchestrator.features.search.searcher.samplers import TrialOutcome
from orchestrator.features.search.searcher.schedulers import Promotion, Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Further seeds for trials that may be the best."""

    rule: Rule = next_contender
    share: float = 0.4
    """Of the env_steps, at most."""
    most_seeds: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How a search goes about it."""

    sampler: str
    sampler_options: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1
    """Of a new trial."""
    scheduler: SchedulerSpec | None = None
    """None: every trial is trained to its end."""
    race: Race | None = None


@dataclass(slots=True, kw_only=True)
class SimulatedTrial:
    """A body, trained with one or several seeds."""

    number: int
    body: int
    reached: list[float | None] = field(default_factory=list)
    """Its mean return over the seeds at each rung that it has reached."""
    env_steps: int = 0
    """Of each of its first seeds."""
    values: list[float] = field(default_factory=list)
    """Of each seed that was trained to its end."""

    @property
    def is_over(self) -> bool:
        return bool(self.values)

    @property
    def value(self) -> float:
        """Of a trial that is over."""
        return statistics.fmean(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A search that is over."""

    trials: Sequence[SimulatedTrial]
    env_steps: int
    """Of all trainings."""
    raced: int
    """env_steps of further seeds, among them."""

    @property
    def finished(self) -> Sequence[SimulatedTrial]:
        """Those that were trained to their end."""
        return [trial for trial in self.trials if trial.is_over]


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
    trials: list[SimulatedTrial] = field(default_factory=list, init=False)
    env_steps: int = field(default=0, init=False)
    raced: int = field(default=0, init=False)
    _untold: list[SimulatedTrial] = field(default_factory=list, init=False)
    _goals: Sequence[int] = field(init=False)
    """env_steps of a training at its rungs, and at its end."""
    _scheduler: Scheduler = field(init=False)
    _sampler: BodySampler = field(init=False)

    def __post_init__(self) -> None:
        landscape = self.world.landscape
        scheduler = self.strategy.scheduler
        rungs = () if scheduler is None else scheduler.rungs(landscape.env_steps)
        self._goals = [*rungs, landscape.env_steps]
        self._scheduler = schedulers.make(
            scheduler or SchedulerSpec(kind="none", min_env_steps=1),
            "asynchronous",
            len(rungs),
            "maximize",
        )
        spec = SearchSpec(
            space=landscape.space,
            sampler=self.strategy.sampler,
            sampler_options=self.strategy.sampler_options,
            seed=self.seed,
            objectives=("eval_mean",),
            directions=("maximize",),
            max_env_steps=self.budget,
        )
        self._sampler = body_sampler(spec, landscape.places)

    def run(self) -> Found:
        while self._promote() or self._add_seed(self.env_steps) or self._begin_trial():
            self._tell()
        self._scheduler.no_more(len(self.trials))
        while self._promote() or self._add_seed(self.budget):
            pass
        return Found(trials=self.trials, env_steps=self.env_steps, raced=self.raced)

    @property
    def _left(self) -> int:
        return self.budget - self.env_steps

    # -- trials

    def _begin_trial(self) -> bool:
        """Whether there was a body, and budget, for another one."""
        number = len(self.trials)
        if number == self.most_trials:
            return False
        if not self._pays(self._cost(0), with_another=True):
            return False
        trial = SimulatedTrial(number=number, body=self._sampler.ask(number))
        self.trials.append(trial)
        self._untold.append(trial)
        self._train(trial, 0)
        return True

    def _promote(self) -> bool:
        """Whether any trial went on."""
        promotions = self._scheduler.decisions()
        affordable = [one for one in promotions if self._cost(self._goal(one)) <= self._left]
        for promotion in affordable[:1]:
            self._scheduler.promoted(promotion.trial, promotion.rung)
            self._train(self.trials[promotion.trial], self._goal(promotion))
        return bool(affordable)

    def _goal(self, promotion: Promotion) -> int:
        return len(self._goals) - 1 if promotion.rung is None else promotion.rung

    def _cost(self, goal: int) -> int:
        """env_steps of a trial on the way to a goal from that before it."""
        before = self._goals[goal - 1] if goal else 0
        return self.strategy.seeds * (self._goals[goal] - before)

    def _train(self, trial: SimulatedTrial, goal: int) -> None:
        self.env_steps += self._cost(goal)
        trial.env_steps = self._goals[goal]
        seeds = range(self.strategy.seeds)
        if goal + 1 == len(self._goals):
            trial.values = [self.world.value(trial.body, seed) for seed in seeds]
            self._scheduler.ended(trial.number)
            return
        returns = [self.world.mean_return(trial.body, seed, trial.env_steps) for seed in seeds]
        known = [value for value in returns if value is not None]
        mean = statistics.fmean(known) if len(known) == len(returns) else None
        trial.reached.append(mean)
        self._scheduler.reached(trial.number, goal, mean)

    def _pays(self, cost: int, *, with_another: bool) -> bool:
        """Whether there is budget for a training, and for all promotions after it.

        :param with_another: whether it is that of another trial.
        """
        left = self._left - cost
        if self._most_of_closing(len(self.trials) + with_another) <= left:
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
            come = going_on + sum(len(trial.reached) > goal for trial in self.trials)
        return cost

    def _cost_of_closing(self, *, with_another: bool) -> int:
        """env_steps of all promotions that would follow if no more trials came, or only one more,
        which goes no further than the first rung.
        """
        if len(self._goals) == 1:
            return 0
        scheduler = copy.deepcopy(self._scheduler)
        trials = len(self.trials)
        last = {trial.number: trial.reached[-1] for trial in self.trials}
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

    def _tell(self) -> None:
        """Tell the sampler of trials that are over, and of those that a rung has rejected for
        now."""
        for trial in self._untold:
            value = trial.value if trial.is_over else trial.reached[-1]
            outcome = TrialOutcome(values=None if value is None else (value,))
            self._sampler.tell(trial.number, trial.body, outcome)
        self._untold.clear()

    # -- further seeds

    def _add_seed(self, of: int) -> bool:
        """Whether a trial that may be the best got one.

        :param of: env_steps that the race may have its share of.
        """
        race = self.strategy.race
        cost = self.world.landscape.env_steps
        if race is None or self.raced + cost > race.share * of:
            return False
        if not self._pays(cost, with_another=False):
            return False
        contenders = [
            Contender(number=trial.number, values=trial.values)
            for trial in self.trials
            if trial.is_over
        ]
        most_seeds = min(race.most_seeds, self.world.most_seeds)
        number = race.rule(contenders, most_seeds=most_seeds) if contenders else None
        if number is None:
            return False
        trial = self.trials[number]
        trial.values.append(self.world.value(trial.body, len(trial.values)))
        self.env_steps += cost
        self.raced += cost
        return True
