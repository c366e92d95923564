"""What a page shows of a search while it goes on: what it has found so far, its rungs, and its
leaderboard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from orchestrator.client.run_watch import (
    Cell,
    LiveChart,
    LiveColumn,
    LiveSection,
    LiveSeries,
    LiveTable,
)
from orchestrator.features.search.history import Trial, is_measured
from orchestrator.features.search.point_text import point_text, value_text
from orchestrator.features.search.trials import TrialReader

LEADERS = 10
MOST_DRAWN = 600
"""Values that the chart has; of more trials every second, third, … is drawn, and the best ones."""
MOST_COLUMNS = 5
"""Keys of the space up to which each of them has a column of its own."""


def of(
    reader: TrialReader,
    line: str,
    leaders: Sequence[Trial],
    lineages: Mapping[int, int | None],
) -> LiveSection:
    """:param line: how far it is.
    :param leaders: the best trials, as :meth:`.TrialReader.best` gives them.
    :param lineages: theirs, as :func:`.trials.lineage_env_steps` gives them; empty where none has
        started from a policy.
    """
    asked = reader.asked
    return LiveSection(
        title="Search",
        text=line,
        charts=_value_charts(reader, asked),
        tables=[*_rungs(reader, asked), *_best(reader, leaders, lineages)],
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
    best = min if scheduler.direction(reader.search) == "minimize" else max
    columns = [
        _ColumnOfRungs(LiveColumn(name="rung (env_steps)", kind="steps"), lambda rung: rung.steps),
        _ColumnOfRungs(LiveColumn(name="reached", kind="bar"), lambda rung: len(rung.reached)),
        _ColumnOfRungs(LiveColumn(name="went on", kind="number"), lambda rung: rung.went_on),
        _ColumnOfRungs(LiveColumn(name="wait", kind="number"), lambda rung: rung.waiting),
        _ColumnOfRungs(
            LiveColumn(name=f"median {scheduler.shown}", kind="value"),
            lambda rung: median(rung.values) if rung.values else None,
        ),
        _ColumnOfRungs(
            LiveColumn(name="best", kind="value"),
            lambda rung: best(rung.values) if rung.values else None,
        ),
    ]
    rungs = [_rung(trials, place, steps) for place, steps in enumerate(reader.rungs)]
    if any(rung.without_value for rung in rungs):
        no_value = LiveColumn(name="no value", kind="number")
        columns.insert(2, _ColumnOfRungs(no_value, lambda rung: rung.without_value))
    return [
        LiveTable(
            title="Rungs",
            columns=[one.column for one in columns],
            rows=[[one.cell(rung) for one in columns] for rung in rungs],
        )
    ]


class _Rung(NamedTuple):
    """A rung, and the trials that have come to it."""

    steps: int
    reached: Sequence[Trial]
    values: list[float]
    """What they are compared by there, of those that have it."""
    went_on: int
    waiting: int

    @property
    def without_value(self) -> int:
        return len(self.reached) - len(self.values)


class _ColumnOfRungs(NamedTuple):
    column: LiveColumn
    cell: Callable[[_Rung], Cell]


def _rung(trials: Sequence[Trial], place: int, steps: int) -> _Rung:
    there = [trial for trial in trials if len(trial.reached) > place]
    return _Rung(
        steps=steps,
        reached=there,
        values=[
            value
            for trial in there
            if (value := trial.reached[place]) is not None and math.isfinite(value)
        ],
        went_on=sum(trial.goal > place for trial in there),
        waiting=sum(trial.is_waiting and len(trial.reached) == place + 1 for trial in there),
    )


# -- the best trials


def _best(
    reader: TrialReader, leaders: Sequence[Trial], lineages: Mapping[int, int | None]
) -> list[LiveTable]:
    """The leaderboard, where a trial has finished."""
    if not leaders or reader.search is None:
        return []
    is_judged = any(trial.in_search for trial in leaders)
    title = "Best trials"
    if len(reader.objectives) > 1:
        title = "Pareto front"
    if len(reader.objectives) > 1 and is_judged:
        title = "Pareto fronts: of those trained again, and of the others"
    columns = [
        _ColumnOfTrials(LiveColumn(name="trial"), lambda trial: str(trial.number)),
        *_columns_of_values(reader, is_judged=is_judged),
        *_columns_of_point([dimension.key for dimension in reader.search.space]),
        _ColumnOfTrials(LiveColumn(name="env_steps", kind="number"), lambda trial: trial.env_steps),
    ]
    if lineages:
        lineage = LiveColumn(name="lineage", kind="number")
        columns.append(
            _ColumnOfTrials(lineage, lambda trial: lineages.get(trial.number, trial.env_steps))
        )
    if reader.search.has_lineages and any(trial.parent is not None for trial in leaders):
        parent = LiveColumn(name="parent", kind="number")
        columns.append(_ColumnOfTrials(parent, lambda trial: trial.parent))
    columns.append(
        _ColumnOfTrials(LiveColumn(name="jobs", kind="jobs"), lambda trial: list(trial.jobs))
    )
    return [
        LiveTable(
            title=title,
            columns=[one.column for one in columns],
            rows=[[one.cell(trial) for one in columns] for trial in leaders],
        )
    ]


class _ColumnOfTrials(NamedTuple):
    column: LiveColumn
    cell: Callable[[Trial], Cell]


def _columns_of_values(reader: TrialReader, *, is_judged: bool) -> list[_ColumnOfTrials]:
    """:param is_judged: whether some trials were trained again, and their values are of that."""
    columns = [
        _ColumnOfTrials(LiveColumn(name=name, kind="value"), partial(_value, place))
        for place, name in enumerate(reader.objectives)
    ]
    if is_judged:
        columns += [
            _ColumnOfTrials(
                LiveColumn(name=f"{name} in the search", kind="value"),
                partial(_value_in_search, place),
            )
            for place, name in enumerate(reader.objectives)
        ]
    if reader.search is not None and reader.search.race:
        believed = reader.believed
        columns.append(
            _ColumnOfTrials(
                LiveColumn(name="believed"), lambda trial: str(believed.get(trial.number, ""))
            )
        )
    return columns


def _value(place: int, trial: Trial) -> Cell:
    return trial.values[place] if trial.values else None


def _value_in_search(place: int, trial: Trial) -> Cell:
    return trial.in_search[place] if trial.in_search else None


def _columns_of_point(keys: Sequence[str]) -> list[_ColumnOfTrials]:
    """One for each key of the space; of many keys one for all."""
    if len(keys) > MOST_COLUMNS:
        return [_ColumnOfTrials(LiveColumn(name="point"), partial(_point, keys))]
    return [
        _ColumnOfTrials(LiveColumn(name=key, kind="number"), partial(_coordinate, key))
        for key in keys
    ]


def _point(keys: Sequence[str], trial: Trial) -> Cell:
    return point_text({key: trial.point[key] for key in keys})


def _coordinate(key: str, trial: Trial) -> Cell:
    return value_text(trial.point[key])
