"""Domain randomisation: properties of the robot that are drawn anew at every episode, for each environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from orchestrator.worker.envs.simulation import BatchSettings, Simulation


def make_simulation(
    xml: Path | str,
    task: str,
    task_options: Mapping[str, Any] | None,
    randomize: Mapping[str, str] | None,
    training_steps: float | None = None,
    **settings: Unpack[BatchSettings],
) -> Simulation:
    """The environments of a robot: a :class:`RandomizedSimulation` where ``randomize`` says what is drawn.

    :raises ValueError: the MJCF does not compile, the task or a key does not fit the robot.
    """
    if not randomize:
        return Simulation.from_xml(xml, task, task_options, **settings)
    from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation

    return RandomizedSimulation(xml, task, task_options, randomize, training_steps, **settings)
