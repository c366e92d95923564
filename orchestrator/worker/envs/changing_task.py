"""A task whose options change over the training: it is made anew whenever their values are others.

So every option of every task can change, those of a user's own task too, and what a task derives
from an option when it is made follows. What the batch of environments is laid out for has to stay:
the observations, the actions, the control period.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco

from orchestrator.core.numbers.changing_numbers import (
    TrainingMoment,
    changing_numbers,
    parse_number,
    turning_moments,
)
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import make_task
from orchestrator.worker.tasks.task_options import EpisodeOptions, TaskError, read_options

TABLE = "task_options"


class ChangingTask:
    """Keeps the task of a simulation at the moment of its training.

    :param name: of the task, as in the job file.
    """

    def __init__(self, simulation: Simulation, name: str, options: Mapping[str, Any]) -> None:
        self._simulation = simulation
        self._name = name
        self._options = options
        self._is_changing = any(changing_numbers(options))
        self._made_with: EpisodeOptions | None = None
        """The options that :meth:`move` has made the task with; None: it has made none yet."""

    def move(self, moment: TrainingMoment) -> None:
        """The numbers are those of ``moment`` from now on, also for the rest of running episodes.

        What has to stay was checked before the launch.
        """
        simulation = self._simulation
        simulation.moment = moment
        if not self._is_changing:
            return
        options = read_options(self._name, type(simulation.task).Options, self._options, moment)
        if options == self._made_with:
            return
        simulation.use_task(make_task(self._name, simulation.task.model, self._options, moment))
        self._made_with = options


def check_changes(name: str, model: mujoco.MjModel, options: Mapping[str, Any]) -> None:
    """Check the task at every moment between which its options change linearly.

    :raises ValueError: it cannot be made, or changes in what has to stay; the message names the
        option.
    """
    texts = dict(changing_numbers(options))
    written = ", ".join(f'{TABLE}.{key} = "{text}"' for key, text in texts.items())
    first: dict[str, Any] = {}
    for moment in turning_moments(map(parse_number, texts.values())) if texts else ():
        try:
            task = make_task(name, model, options, moment)
            size = Simulation(model, task, n_envs=1, seed=0, robot=name).observation_size
        except ValueError as error:
            is_certain = isinstance(error, TaskError) and error.is_certain
            raise TaskError(f"{error} ({moment}: {written})", is_certain=is_certain) from None
        layout = {
            "the number of observations": size,
            "the control period": task.step_s,
            "the size of the goal": task.goal_size,
            "the fields of MjData": (task.all_fields, task.fields_lag),
            "the keyframe": task.key,
            "the bounds of the actions": (tuple(task.actions.low), tuple(task.actions.high)),
            "the measures": [*task.measures.items()],
        }
        first = first or layout
        changed = [what for what, value in first.items() if layout[what] != value]
        if changed:
            raise TaskError(
                f"{written}: {' and '.join(changed)} would change, which cannot be during a training ({moment}); vary "
                "it with a matrix, or write a number"
            )
