"""What the table ``curriculum`` means, and its checks: stages, the conditions between them, and their
columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.numbers.changing_numbers import Stages, changing_numbers, parse_number
from orchestrator.core.numbers.distributions import parse_distribution
from orchestrator.core.numbers.terrain import TERRAIN
from orchestrator.core.progress_columns import progress_columns
from orchestrator.core.text import count
from orchestrator.features.curriculum.conditions import parse_condition, resolve_column
from orchestrator.features.curriculum.part import CurriculumSettings
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.job_table_rules import JobTableRules
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.model_edit_keys import flat

_DIVERGENCES = "rollout/divergences"
_ONLY_LEARNT = "train/ent_coef_loss"
"""A column of SAC and its kin that is there where ``ent_coef`` is learnt."""


def _check(job: MergedJob) -> None:
    merged = job.settings
    written = merged["curriculum"]["advance"]
    stages = _numbers_with_stages(merged) if "task" in merged else []
    if not stages:
        if job.sets("curriculum.advance"):
            message = 'is for numbers with stages, such as push_speed = "stages(0, 0.5, 1)"'
            job.report(["curriculum.advance", "task_options", "randomize"], message)
        return
    keys = [dotted for dotted, _ in stages]
    number = stages[0][1]
    if any(other != number for _, other in stages):
        each = ", ".join(f"{dotted} has {other}" for dotted, other in stages)
        job.report(keys, f"all numbers of a job have the same stages: {each}")
        return
    if not written:
        message = f'has {number} stages, and nothing advances them; set curriculum.advance, such as "ep_rew_mean > 800"'
        job.report(keys, message)
        return
    if len(written) not in (1, number - 1):
        message = f"has {count(len(written), 'condition')} for {number} stages; expected one, or {number - 1}"
        job.report(["curriculum.advance"], message)
    _check_episodes(job)
    columns = _columns(merged)
    for text in written:
        try:
            resolve_column(parse_condition(text).column, columns)
        except ValueError as error:
            job.report(["curriculum.advance"], f'"{text}": {error}')


def _numbers_with_stages(merged: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the numbers of a job with a task that have stages: dotted key, and how many."""
    numbers = [
        (f"task_options.{dotted}", parse_number(text))
        for dotted, text in changing_numbers(merged["task_options"])
    ]
    for dotted, text in flat(merged["randomize"]).items():
        if dotted != TERRAIN:
            distribution = parse_distribution(text)
            numbers += [(f"randomize.{dotted}", number) for number in distribution.changing]
    return [(dotted, len(one.values)) for dotted, one in numbers if isinstance(one, Stages)]


def _check_episodes(job: MergedJob) -> None:
    algo = job.settings["algo"]
    episodes = job.settings["curriculum"]["episodes"]
    table = algo if algo in DEFAULTS else "algo_kwargs"
    window = {**DEFAULTS.get(algo, {}), **job.settings[table]}.get("stats_window_size", 100)
    if episodes > window:
        message = (
            f"is {episodes}, and returns are averaged over {table}.stats_window_size = {window} episodes; "
            "expected at most as many"
        )
        job.report(["curriculum.episodes", "curriculum.advance"], message)


def _settings(merged: Mapping[str, Any]) -> CurriculumSettings:
    """The defaults without conditions, so that no unused value differs."""
    written = _conditions(merged)
    if not written:
        return CurriculumSettings()
    return CurriculumSettings(advance=written, episodes=merged["curriculum"]["episodes"])


def _conditions(merged: Mapping[str, Any]) -> tuple[str, ...]:
    """The conditions of a job that has passed the checks, one for each stage after the first."""
    written = merged["curriculum"]["advance"]
    stages = _numbers_with_stages(merged) if "task" in merged else []
    if not written or not stages:
        return ()
    one_each = written if len(written) > 1 else written * (stages[0][1] - 1)
    found = []
    for text in one_each:
        condition = parse_condition(text)
        try:
            column = resolve_column(condition.column, _columns(merged))
        except ValueError:  # is reported
            return ()
        found.append(f"{column} {condition.comparison} {condition.threshold!r}")
    return tuple(found)


def _columns(merged: Mapping[str, Any]) -> list[str]:
    columns = progress_columns(merged["algo"])
    if not str(merged.get(merged["algo"], {}).get("ent_coef", "auto")).startswith("auto"):
        columns = [name for name in columns if name != _ONLY_LEARNT]
    return [*columns, _DIVERGENCES] if merged["on_divergence"] == "end-episode" else columns


RULES = JobTableRules(
    settings=_settings,
    check=_check,
    is_for_tasks=True,
)
