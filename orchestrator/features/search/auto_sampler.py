"""Which sampler ``sampler = "auto"`` of a search is: the first of :data:`RULES` that fits. No I/O.

The numbers are first guesses, to be set by what searches on tables of bodies show
(``benchmarks/bodies``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.text import count

AUTO = "auto"
"""The sampler is chosen when the search is declared, and kept when it is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTraits:
    """What a sampler is chosen by."""

    numbers: int
    """Dimensions between two numbers."""
    choices: int
    """Dimensions with choices."""
    trials: int | None
    """That the budget allows, each trained to its end; None: it is a time."""
    objectives: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRule:
    """A sampler, and the searches that it is for."""

    sampler: str
    has_several_objectives: bool = False
    takes_choices: bool = True
    most_numbers: int | None = None
    fewest_trials: int | None = None
    most_trials: int | None = None

    def fits(self, traits: SearchTraits) -> bool:
        if self.has_several_objectives != (traits.objectives > 1):
            return False
        if traits.choices and not self.takes_choices:
            return False
        if self.most_numbers is not None and traits.numbers > self.most_numbers:
            return False
        return self._fits_budget(traits.trials)

    def _fits_budget(self, trials: int | None) -> bool:
        if trials is None:
            return self.fewest_trials is self.most_trials is None
        if self.fewest_trials is not None and trials < self.fewest_trials:
            return False
        return self.most_trials is None or trials <= self.most_trials


RULES: Sequence[SamplerRule] = (
    SamplerRule(sampler="nsga2", has_several_objectives=True),
    SamplerRule(sampler="gp", takes_choices=False, most_numbers=8, most_trials=300),
    SamplerRule(sampler="cmaes", takes_choices=False, fewest_trials=301),
    SamplerRule(sampler="tpe"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerChoice:
    """What ``auto`` is in a search."""

    sampler: str
    reason: str
    """What follows "as"."""

    def __str__(self) -> str:
        return f"{self.sampler}, as {self.reason}"


def choose(traits: SearchTraits) -> SamplerChoice:
    sampler = next(rule.sampler for rule in RULES if rule.fits(traits))
    return SamplerChoice(sampler=sampler, reason=_reason(traits))


def _reason(traits: SearchTraits) -> str:
    if traits.objectives > 1:
        return f"there are {traits.objectives} objectives"
    numbers = f"{count(traits.numbers, 'dimension')} with numbers"
    choices = f"{traits.choices} with choices" if traits.choices else "none with choices"
    budget = "a time" if traits.trials is None else count(traits.trials, "trial")
    return f"the space has {numbers} and {choices}, and the first budget is {budget}"
