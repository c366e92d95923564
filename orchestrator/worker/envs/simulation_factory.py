"""Makes the environments of a robot, with what is drawn anew at every episode where a job has
that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from orchestrator.core.numbers.evaluation_grid import EvaluationGrid
from orchestrator.worker.envs.batch_interface import BatchSettings
from orchestrator.worker.envs.episode_conditions import GridPlaces
from orchestrator.worker.envs.simulation import Simulation


def make_simulation(
    xml: Path | str,
    task: str,
    task_options: Mapping[str, Any] | None,
    randomize: Mapping[str, Any] | None,
    grid: GridPlaces | None = None,
    *,
    asymmetric: bool = False,
    **settings: Unpack[BatchSettings],
) -> Simulation:
    """The environments of a robot: a :class:`RandomizedSimulation` where ``randomize`` says what is
    drawn.

    :raises ValueError: the MJCF does not compile, the task or a key does not fit the robot.
    """
    # MuJoCo looks for assets of included files in another folder where the path is relative.
    xml = Path(xml).absolute()
    is_nominal = settings.get("nominal", False) and not asymmetric
    if grid is None and (is_nominal or not randomize):
        return Simulation.from_xml(xml, task, task_options, asymmetric=asymmetric, **settings)
    from orchestrator.worker.envs.randomization.randomized_simulation import RandomizedSimulation

    return RandomizedSimulation(
        xml, task, task_options, randomize or {}, grid, asymmetric=asymmetric, **settings
    )


def observed_simulation(
    xml: Path | str,
    task: str,
    task_options: Mapping[str, Any] | None,
    randomize: Mapping[str, Any],
    *,
    asymmetric: bool,
) -> Simulation:
    """One environment with a job's observations: what is drawn is among them only if
    ``asymmetric``.

    :raises ValueError: as :func:`make_simulation`.
    """
    drawn = randomize if asymmetric else None
    return make_simulation(xml, task, task_options, drawn, asymmetric=asymmetric, n_envs=1, seed=0)


def check_grid(
    xml: Path | str,
    task: str,
    task_options: Mapping[str, Any] | None,
    randomize: Mapping[str, Any],
    evaluate: Mapping[str, Any],
) -> None:
    """Make an environment at the first point of the grid ``evaluate``, if there is one.

    :raises ValueError: a key of the grid does not fit the robot.
    """
    grid = EvaluationGrid.parse(evaluate)
    if grid is None:
        return
    at_first = GridPlaces(grid, grid.points[:1], at_each=1)
    make_simulation(xml, task, task_options, randomize, at_first, n_envs=1, seed=0)
