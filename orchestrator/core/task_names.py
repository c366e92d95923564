"""The built-in tasks: a new one is a module in ``orchestrator/worker/tasks`` and an entry here."""

from __future__ import annotations

from collections.abc import Mapping

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

_DISTANCE = ("distance_m",)
_LOCOMOTION = [
    name for name, path in GYMNASIUM_TASKS.items() if path.startswith("gymnasium_tasks.locomotion:")
]
MEASURES: Mapping[str, tuple[str, ...]] = {
    "forward": _DISTANCE,
    "reach": _DISTANCE,
    "stand": ("height_m",),
    "track": ("velocity_error_m_s",),
    **dict.fromkeys(_LOCOMOTION, _DISTANCE),
}
"""Built-in tasks that measure an episode besides its return → the names of their measures."""
