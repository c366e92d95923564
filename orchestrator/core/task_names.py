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

PRESETS: Mapping[str, str] = {
    "gymnasium:Ant-v5": "presets.locomotion:Ant",
    "gymnasium:HalfCheetah-v5": "presets.locomotion:HalfCheetah",
    "gymnasium:Hopper-v5": "presets.locomotion:Hopper",
    "gymnasium:Humanoid-v5": "presets.locomotion:Humanoid",
    "gymnasium:InvertedDoublePendulum-v5": "presets.pendulums:InvertedDoublePendulum",
    "gymnasium:InvertedPendulum-v5": "presets.pendulums:InvertedPendulum",
    "gymnasium:Swimmer-v5": "presets.locomotion:Swimmer",
    "gymnasium:Walker2d-v5": "presets.locomotion:Walker2d",
}
"""Name in a job file → module and class, for gymnasium's own environments as tasks over the batched simulation."""
