"""What ``best`` shows: one line per trial, the best first."""

from __future__ import annotations

from typing import Any

from orchestrator.analysis.statistics import Estimate as Mean
from orchestrator.analysis.statistics_text import with_interval
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.job import META
from orchestrator.core.text import count, decimal, number_or_dash, plain
from orchestrator.features.search import ranking_remarks
from orchestrator.features.search.declaration.spec import Direction
from orchestrator.features.search.estimates import Estimate
from orchestrator.features.search.history import Trial
from orchestrator.features.search.point_text import exact_point_text, point_text
from orchestrator.features.search.racing import Shrunken, with_error
from orchestrator.features.search.ranking import Ranking
from orchestrator.terminal.output import show_table

WAYS: dict[Direction, str] = {"maximize": "largest", "minimize": "smallest"}


def show(ranking: Ranking) -> None:
    what = "trial" if ranking.is_search else "job"
    total = f"{count(ranking.trials, what)} of {ranking.paths.root}"
    if not ranking.shown:
        finished = "has finished" if ranking.is_search else "has finished with an evaluation"
        print(f"None of the {total} {finished}{'' if ranking.is_over else ' yet'}.")
        if ranking.status:
            print(plain(f"\n{ranking.status}", keep="\n"))
        return
    below = [line for remark in ranking_remarks.of(ranking) for line in ("", remark)]
    show_table(_columns(ranking), ranking.shown, above=[_title(ranking, total), ""], below=below)


def _title(ranking: Ranking, total: str) -> str:
    shown = f"{total}, {ranking.finished:,} finished"
    if len(ranking.objectives) == 1:
        by = ranking.objectives[0]
        if ranking.is_by_estimate:
            by = f"estimated {by}"
        elif ranking.believed:
            by = f"believed {by}"
        best = f"the best {len(ranking.shown):,} by {by}"
        return f"{shown}; {best} ({WAYS[ranking.directions[0]]} first)"
    wanted = [
        f"{WAYS[way]} {name}"
        for name, way in zip(ranking.objectives, ranking.directions, strict=True)
    ]
    return f"{shown}; {len(ranking.shown):,} of the Pareto front of {' and '.join(wanted)}"


def _columns(ranking: Ranking) -> list[Column[Trial]]:
    columns: list[Column[Trial]] = []
    if ranking.is_search:
        columns.append(number_column("trial", lambda trial: trial.role or str(trial.number)))
    for index in range(len(ranking.objectives)):
        columns += _columns_of_objective(ranking, index)
    if ranking.believed:
        columns.append(
            number_column("believed", lambda trial: _belief(ranking.believed.get(trial.number)))
        )
    if any(trial.further for trial in ranking.shown):
        columns.append(number_column("seeds", lambda trial: str(len(trial.jobs)), rank=4))
    for name in ranking.measure_names:
        columns.append(
            number_column(name, lambda trial, name=name: _measure(ranking, trial, name), rank=5)  # type: ignore[misc]
        )
    columns.append(number_column("env_steps", lambda trial: f"{trial.env_steps:,}", rank=3))
    if ranking.has_lineage:
        columns.append(number_column("lineage", lambda trial: _lineage(ranking, trial), rank=3))
    if any(trial.parent is not None for trial in ranking.shown):
        columns.append(
            number_column(
                "parent", lambda trial: NONE if trial.parent is None else str(trial.parent), 4
            )
        )
    elif any(ranking.lineages[trial.number].parents for trial in ranking.shown):
        columns.append(
            Column("parent", lambda trial: _parents(ranking, trial), rank=4, is_folded=True)
        )
    if any(trial.point for trial in ranking.shown):
        columns.append(Column("point", _point, rank=1, is_folded=True))
    columns.append(Column("jobs", lambda trial: ", ".join(trial.jobs), rank=2, is_folded=True))
    return columns


def _point(trial: Trial) -> str:
    """With all digits; what a program says of a robot, which may have many, with four."""
    said = {key: value for key, value in trial.point.items() if key.startswith(META)}
    declared = {key: value for key, value in trial.point.items() if key not in said}
    known = {key: value for key, value in said.items() if value is not None}
    return ", ".join(filter(None, [exact_point_text(declared), point_text(known)]))


def _columns_of_objective(ranking: Ranking, index: int) -> list[Column[Trial]]:
    """Its values, and what is known of them."""
    name = ranking.objectives[index]
    columns: list[Column[Trial]] = [number_column(name, lambda trial: _value(trial.values, index))]
    if any(_spread(ranking, trial, index) is not None for trial in ranking.shown):
        columns.append(
            number_column("± seeds", lambda trial: _number(_spread(ranking, trial, index)))
        )
    if any(_mean(ranking, trial, index) is not None for trial in ranking.shown):
        columns.append(
            number_column("mean, 95 %", lambda trial: _interval(_mean(ranking, trial, index)))
        )
    if ranking.in_search:
        columns.append(
            number_column(
                f"{name} in the search",
                lambda trial: _value(ranking.in_search.get(trial.number), index),
            )
        )
    if ranking.estimates:
        columns.append(
            number_column("estimate", lambda trial: _belief(ranking.estimates.get(trial.number)))
        )
    return columns


def _value(values: Any, index: int) -> str:
    return _number(None if values is None else values[index])


def _lineage(ranking: Ranking, trial: Trial) -> str:
    return number_or_dash(ranking.lineages[trial.number].env_steps, ",d")


def _parents(ranking: Ranking, trial: Trial) -> str:
    return ", ".join(ranking.lineages[trial.number].parents) or NONE


def _spread(ranking: Ranking, trial: Trial, index: int) -> float | None:
    return ranking.over_seeds[trial.number].spread[index]


def _mean(ranking: Ranking, trial: Trial, index: int) -> Mean | None:
    means = ranking.fresh_means(trial)
    return means[index] if means else None


def _interval(mean: Mean | None) -> str:
    if mean is None or mean.low is None:
        return NONE
    return with_interval(mean, lambda value: decimal(value, 2))


def _belief(found: Estimate | Shrunken | None) -> str:
    return NONE if found is None else with_error(found.mean, found.error)


def _measure(ranking: Ranking, trial: Trial, name: str) -> str:
    return _number(ranking.over_seeds[trial.number].measures.get(name))


def _number(value: float | None) -> str:
    return NONE if value is None else decimal(value, 2)
