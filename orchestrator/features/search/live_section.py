"""What a page shows of a search while it goes on: what it has found so far, its rungs, and its
leaderboard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import MappingProxyType

from orchestrator.experiment.from_outside.run_watch import (
    Cell,
    LiveChart,
    LiveColumn,
    LiveSection,
    LiveSeries,
    LiveTable,
)
from orchestrator.features.search.history import Trial, is_measured
from orchestrator.features.search.report_data import value_text
from orchestrator.features.search.trials import TrialReader

LEADERS = 10
NO_LINEAGES: Mapping[int, int | None] = MappingProxyType({})
MOST_DRAWN = 600
"""Values that the chart has; of more trials every second, third, … is drawn, and the best ones."""
MOST_COLUMNS = 5
"""Keys of the space up to which each of them has a column of its own."""


def of(
    reader: TrialReader, line: str, lineages: Mapping[int, int | None] = NO_LINEAGES
) -> LiveSection:
    """:param line: how far it is.
    :param lineages: of the best trials, as :func:`.trials.lineage_env_steps` gives them; empty where
        none has started from a policy.
    """
    asked = reader.asked
    return LiveSection(
        title="Search",
        text=line,
        charts=_value_charts(reader, asked),
        tables=[*_rungs(reader, asked), *_best(reader, lineages)],
    )


# -- what has been found so far


def _value_charts(reader: TrialReader, trials: Sequence[Trial]) -> list[LiveChart]:
    """The values of finished trials by the first objective, and the best one so far as it was known
    then.
    """
    if reader.search is None:
        return []
    measured = [trial for trial in trials if is_measured(trial)]
    if not measured:
        return []
    improvements = reader.course.improvements[0]
    best_ones = {one["trial"] for one in improvements}
    stride = math.ceil(len(measured) / MOST_DRAWN)
    shown = [
        (trial.number, trial.values[0])
        for place, trial in enumerate(measured)
        if trial.values and (place % stride == 0 or trial.number in best_ones)
    ]
    best_so_far = [(one["latest"], one["value"]) for one in improvements]
    last = max(reader.course.spent)
    if best_so_far[-1][0] != last:
        best_so_far.append((last, best_so_far[-1][1]))
    objective = reader.objectives[0]
    return [
        LiveChart(
            title=f"{objective} of the finished trials, and the best so far",
            x="trial",
            y=objective,
            series=[
                LiveSeries(name="trial", points=shown, is_dots=True),
                LiveSeries(name="best so far", points=best_so_far, is_steps=True),
            ],
        )
    ]


# -- rungs


def _rungs(reader: TrialReader, trials: Sequence[Trial]) -> list[LiveTable]:
    scheduler = reader.scheduler
    if not reader.rungs or scheduler is None:
        return []
    columns = (
        LiveColumn(name="rung (env_steps)", kind="steps"),
        LiveColumn(name="reached", kind="bar"),
        LiveColumn(name="went on", kind="number"),
        LiveColumn(name="wait", kind="number"),
        LiveColumn(name=f"median {scheduler.shown}", kind="value"),
        LiveColumn(name="best", kind="value"),
    )
    best = min if scheduler.direction(reader.search) == "minimize" else max
    rows = [_rung(trials, best, place, steps) for place, steps in enumerate(reader.rungs)]
    return [LiveTable(title="Rungs", columns=columns, rows=rows)]


def _rung(
    trials: Sequence[Trial], best: Callable[[list[float]], float], place: int, steps: int
) -> list[Cell]:
    there = [trial for trial in trials if len(trial.reached) > place]
    values = [
        value
        for trial in there
        if (value := trial.reached[place]) is not None and math.isfinite(value)
    ]
    return [
        steps,
        len(there),
        sum(trial.goal > place for trial in there),
        sum(trial.is_waiting and len(trial.reached) == place + 1 for trial in there),
        median(values) if values else None,
        best(values) if values else None,
    ]


# -- the best trials


def _best(reader: TrialReader, lineages: Mapping[int, int | None]) -> list[LiveTable]:
    """The leaderboard, where a trial has finished."""
    leaders = reader.best()[:LEADERS]
    if not leaders or reader.search is None:
        return []
    objectives = reader.objectives
    of_search = objectives if any(trial.in_search for trial in leaders) else ()
    has_parents = reader.search.has_lineages and any(one.parent is not None for one in leaders)
    title = "Best trials"
    if len(objectives) > 1:
        title = (
            "Pareto fronts: of those trained again, and of the others"
            if of_search
            else "Pareto front"
        )
    believed = reader.believed
    keys = [dimension.key for dimension in reader.search.space]
    if len(keys) > MOST_COLUMNS:
        of_point = [LiveColumn(name="point")]
    else:
        of_point = [LiveColumn(name=key, kind="number") for key in keys]
    return [
        LiveTable(
            title=title,
            columns=[
                LiveColumn(name="trial"),
                *(LiveColumn(name=name, kind="value") for name in objectives),
                *(LiveColumn(name=f"{name} in the search", kind="value") for name in of_search),
                *([LiveColumn(name="believed")] if reader.search.race else ()),
                *of_point,
                LiveColumn(name="env_steps", kind="number"),
                *([LiveColumn(name="lineage", kind="number")] if lineages else ()),
                *([LiveColumn(name="parent", kind="number")] if has_parents else ()),
                LiveColumn(name="jobs", kind="jobs"),
            ],
            rows=[
                [
                    str(trial.number),
                    *_values(trial.values, objectives),
                    *_values(trial.in_search, of_search),
                    *([str(believed.get(trial.number, ""))] if reader.search.race else ()),
                    *_point(trial, keys),
                    trial.env_steps,
                    *([lineages.get(trial.number, trial.env_steps)] if lineages else ()),
                    *([trial.parent] if has_parents else ()),
                    list(trial.jobs),
                ]
                for trial in leaders
            ],
        )
    ]


def _values(values: Sequence[float] | None, objectives: Sequence[str]) -> list[Cell]:
    """One for each of ``objectives``; None where they are not known."""
    if values is None:
        return [None] * len(objectives)
    return list(values[: len(objectives)])


def _point(trial: Trial, keys: Sequence[str]) -> list[Cell]:
    if len(keys) > MOST_COLUMNS:
        return [", ".join(f"{key} = {value_text(trial.point[key])}" for key in keys)]
    return [value_text(trial.point[key]) for key in keys]
