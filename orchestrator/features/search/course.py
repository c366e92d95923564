"""What was known of a search, and what it had spent, while it went on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from orchestrator.features.search.declaration.spec import Direction
from orchestrator.features.search.history import History, is_measured
from orchestrator.features.search.search_events import SearchEvent


class SpentByThen(NamedTuple):
    """What a search had spent at one moment; in ``report.json`` a list."""

    env_steps: int
    """Of all trials."""
    elapsed_s: float


class Improvement(TypedDict):
    """The best trial from one moment on, with its value over the seeds that had ended by then, and
    what had been spent. The next one is better, or the same with another seed, which may be worse.
    """

    trial: int
    value: float
    latest: int
    """The highest number of the trials, further seeds among them, that had ended by then."""
    env_steps: int
    elapsed_s: float


@dataclass(slots=True, kw_only=True)
class Course:
    """A fold of the events of a search."""

    directions: Sequence[Direction] = ()
    """Of its objectives."""
    spent: dict[int, SpentByThen] = field(default_factory=dict)
    """Trial that has ended with a value → what had been spent by then."""
    improvements: list[list[Improvement]] = field(init=False)
    """For each objective: the best so far as it was known then, whenever it changed."""
    _values: list[dict[int, float]] = field(init=False)
    """For each objective: by number, over the seeds that have ended so far; in the order in which
    the first ones did."""
    _env_steps: dict[int, int] = field(default_factory=dict)
    """Of each trial, by number."""
    _total: int = 0
    """Of all of them."""

    def __post_init__(self) -> None:
        self.improvements = [[] for _ in self.directions]
        self._values = [{} for _ in self.directions]

    def note(self, event: SearchEvent, history: History) -> None:
        """:param history: up to this event."""
        if event.trial is None:
            return
        trial = history.trials[event.trial]
        self._total += trial.env_steps - self._env_steps.get(trial.number, 0)
        self._env_steps[trial.number] = trial.env_steps
        if event.kind != "over" or event.content["values"] is None:
            return
        by_then = SpentByThen(env_steps=self._total, elapsed_s=history.elapsed_s)
        self.spent[trial.number] = by_then
        if trial.is_further_seed:
            assert trial.reevaluates is not None
            trial = history.trials[trial.reevaluates]
        if trial.is_of_search and is_measured(trial):
            for place, value in enumerate((trial.values or ())[: len(self.directions)]):
                self._note_value(place, trial.number, value, by_then)

    def _note_value(self, place: int, number: int, value: float, by_then: SpentByThen) -> None:
        """``value`` of this objective is now that of this trial."""
        values = self._values[place]
        values[number] = value
        improvements = self.improvements[place]
        is_higher_better = self.directions[place] == "maximize"
        before = improvements[-1] if improvements else None
        if before is not None and number == before["trial"]:
            choose = max if is_higher_better else min
            number, value = choose(values.items(), key=lambda item: item[1])
            if (number, value) == (before["trial"], before["value"]):
                return
        elif before is not None:
            is_better = value > before["value"] if is_higher_better else value < before["value"]
            if not is_better:
                return
        improvements.append(
            {
                "trial": number,
                "value": value,
                "latest": max(self.spent),
                "env_steps": by_then.env_steps,
                "elapsed_s": by_then.elapsed_s,
            }
        )
