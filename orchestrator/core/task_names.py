"""The built-in tasks: a new one is a module in ``orchestrator/worker/tasks`` and an entry here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

AUTO = "auto"
"""The built-in task that suits the robot's structure; chosen before launch."""

TASKS: Mapping[str, str] = {
    "balance": "balance:Balance",
    "forward": "forward:Forward",
    "reach": "reach:Reach",
    "stand": "stand:Stand",
    "track": "track:Track",
}
"""Name in a job file → module and class below ``orchestrator.worker.tasks``."""

GYMNASIUM_TASKS: Mapping[str, str] = {
    "gymnasium:Ant-v5": "gymnasium_tasks.locomotion:Ant",
    "gymnasium:HalfCheetah-v5": "gymnasium_tasks.locomotion:HalfCheetah",
    "gymnasium:Hopper-v5": "gymnasium_tasks.locomotion:Hopper",
    "gymnasium:Humanoid-v5": "gymnasium_tasks.locomotion:Humanoid",
    "gymnasium:InvertedDoublePendulum-v5": "gymnasium_tasks.pendulums:InvertedDoublePendulum",
    "gymnasium:InvertedPendulum-v5": "gymnasium_tasks.pendulums:InvertedPendulum",
    "gymnasium:Swimmer-v5": "gymnasium_tasks.locomotion:Swimmer",
    "gymnasium:Walker2d-v5": "gymnasium_tasks.locomotion:Walker2d",
}
"""Name in a job file → module and class, for gymnasium's own environments as tasks over the batched
simulation."""

EFFORT = ("energy_j", "mass_kg", "cost_of_transport", "torque_rms")
"""Measures of every task over the batched simulation, in the order in which they are reported, after
those of the task itself. They are defined in ``orchestrator/worker/envs/effort.py``."""

_DISTANCE = ("distance_m",)
_LOCOMOTION = [
    name for name, path in GYMNASIUM_TASKS.items() if path.startswith("gymnasium_tasks.locomotion:")
]
_OWN_MEASURES: Mapping[str, tuple[str, ...]] = {
    "forward": _DISTANCE,
    "reach": _DISTANCE,
    "stand": ("height_m",),
    "track": ("velocity_error_m_s",),
    **dict.fromkeys(_LOCOMOTION, _DISTANCE),
}
"""Built-in tasks that measure an episode besides its return → the names of their own measures."""

STAYING = frozenset(
    name for name in (*TASKS, *GYMNASIUM_TASKS) if name not in ("forward", "track", *_LOCOMOTION)
)
"""Built-in tasks that do not move the robot from place to place: ``cost_of_transport`` has no value
there."""


def _measures_of(task: str) -> tuple[str, ...]:
    effort: tuple[str, ...] = EFFORT
    if task in STAYING:
        effort = tuple(name for name in EFFORT if name != "cost_of_transport")
    return *_OWN_MEASURES.get(task, ()), *effort


MEASURES: Mapping[str, tuple[str, ...]] = {
    task: _measures_of(task) for task in (*TASKS, *GYMNASIUM_TASKS)
}
"""Built-in tasks → the names of the measures that can have a value, the task's own first."""


def measure_of_task(measures: Iterable[str]) -> str | None:
    """The first measure of a task's own: the one that is shown where there is room for one.

    :param measures: the names of all, in their order.
    """
    return next((name for name in measures if name not in EFFORT), None)
