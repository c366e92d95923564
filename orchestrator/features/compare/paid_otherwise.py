"""Whether returns may differ as tasks pay otherwise."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.analysis.job_values import EVALUATION, TRAINING
from orchestrator.core.front_end import option
from orchestrator.core.text import listed
from orchestrator.features.compare.compared_figure import names_in
from orchestrator.features.compare.declared_settings import Difference, without_cases

TASKS = ("task", "env", "entry_point")
"""The keys of a job that name what pays its reward."""
OPTIONS_OF_TASKS = ("task_options.", "env_kwargs.")
"""What keys of a job begin with that may change its reward."""
PAY_NOTHING = ("observe", "history", "asymmetric")
"""The options of tasks that only say what the policy and its critic are shown."""


def other_tasks_remarks(figures: Iterable[str], settings: Iterable[Difference]) -> list[str]:
    """That a return is compared of tasks that may not pay alike; none for other ``figures``, and for
    tasks with equal options.
    """
    names = [name for figure in figures for name in names_in(figure)]
    returns = [name for name in names if name in (EVALUATION, TRAINING)]
    options = dict.fromkeys(one.what for one in settings if _may_pay(one.what))
    if not returns or not options:
        return []
    return [
        f"{returns[0]} is a return, and what earns it may differ with {listed(list(options))}:"
        f" {option('by')} with a measure of the task compares what both achieve."
    ]


def _may_pay(setting: str) -> bool:
    """:param setting: as :attr:`.Difference.what` has it."""
    key = without_cases(setting)
    if key in TASKS:
        return True
    is_option = key.startswith(OPTIONS_OF_TASKS)
    return is_option and not any(key == f"task_options.{name}" for name in PAY_NOTHING)
