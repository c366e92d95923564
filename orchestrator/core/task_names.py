"""The table of built-in tasks: a new task is a module in ``orchestrator/worker/tasks`` and a row
here, a new measure of a task is an entry in its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

AUTO = "auto"
"""The built-in task that suits the robot's structure; chosen before launch."""

OverEpisode: TypeAlias = Literal["sum", "mean", "last", "rms"]
"""How the values of a measure in the control steps of an episode are combined; ``rms`` is the root of
the mean of values that are squares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInTask:
    path: str
    """Module and class below ``orchestrator.worker.tasks``."""
    measures: Mapping[str, OverEpisode] = field(default_factory=dict)
    """What an episode is measured by besides its return, in the order of the columns of the class's
    ``measure``."""
    travels: bool = False
    """Whether it moves the robot from place to place, so that ``cost_of_transport`` has a value."""


TASKS: Mapping[str, BuiltInTask] = {
    "balance": BuiltInTask(path="balance:Balance"),
    "forward": BuiltInTask(path="forward:Forward", measures={"distance_m": "sum"}, travels=True),
    "reach": BuiltInTask(path="reach:Reach", measures={"distance_m": "last"}),
    "stand": BuiltInTask(path="stand:Stand", measures={"height_m": "mean"}),
    "track": BuiltInTask(
        path="track:Track",
        measures={"velocity_error_m_s": "mean", "distance_m": "sum"},
        travels=True,
    ),
}
"""By the name in a job file."""


def _locomotion(kind: str) -> BuiltInTask:
    return BuiltInTask(path=f"gymnasium_tasks:{kind}", measures={"distance_m": "sum"}, travels=True)


GYMNASIUM_TASKS: Mapping[str, BuiltInTask] = {
    "gymnasium:Ant-v5": _locomotion("Ant"),
    "gymnasium:HalfCheetah-v5": _locomotion("HalfCheetah"),
    "gymnasium:Hopper-v5": _locomotion("Hopper"),
    "gymnasium:Humanoid-v5": _locomotion("Humanoid"),
    "gymnasium:InvertedDoublePendulum-v5": BuiltInTask(
        path="gymnasium_tasks:InvertedDoublePendulum"
    ),
    "gymnasium:InvertedPendulum-v5": BuiltInTask(path="gymnasium_tasks:InvertedPendulum"),
    "gymnasium:Swimmer-v5": _locomotion("Swimmer"),
    "gymnasium:Walker2d-v5": _locomotion("Walker2d"),
}
"""Gymnasium's own environments as tasks over the batched simulation, by the name in a job file."""

BUILT_IN: Mapping[str, BuiltInTask] = {**TASKS, **GYMNASIUM_TASKS}

EFFORT = ("energy_j", "mass_kg", "cost_of_transport", "torque_rms")
"""Measures of every task over the batched simulation, in the order in which they are reported, after
those of the task itself. They are defined in ``orchestrator/worker/envs/effort.py``."""


def _measures_of(task: BuiltInTask) -> tuple[str, ...]:
    effort = [name for name in EFFORT if task.travels or name != "cost_of_transport"]
    return *task.measures, *effort


MEASURES: Mapping[str, tuple[str, ...]] = {
    name: _measures_of(task) for name, task in BUILT_IN.items()
}
"""Built-in tasks → the names of the measures that can have a value, the task's own first."""


def measure_of_task(measures: Iterable[str]) -> str | None:
    """Return the first measure that is a task's own: the one that is shown where there is room for
    one.

    :param measures: the names of all, in their order.
    """
    return next((name for name in measures if name not in EFFORT), None)
