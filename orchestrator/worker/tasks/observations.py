"""What a policy observes in place of what its task gives: ``observe`` and ``history`` of
``task_options``.

``"proprioception"`` is what a robot's own sensors give: a gyroscope, encoders, and what its
controller knows. What is not among it (the velocity of the root, heights, contacts) a real robot
does not measure.
"""

from __future__ import annotations

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.joints import HINGE, SLIDE, joint_name, joint_type
from orchestrator.worker.mjmodel.robot import driven_trees, joints_in
from orchestrator.worker.mjmodel.root import NoRootError
from orchestrator.worker.mjmodel.structure import addresses, posed_data
from orchestrator.worker.tasks.actions import Scaled
from orchestrator.worker.tasks.base import Task
from orchestrator.worker.tasks.input_names import NUMBER, vector
from orchestrator.worker.tasks.motion import root_motion_of
from orchestrator.worker.tasks.task_options import CommonOptions, TaskError
from orchestrator.worker.tasks.terms import (
    Term,
    Terms,
    labelled,
    last_action,
    offset_term,
    velocity_term,
)

FULL = "full"
PROPRIOCEPTION = "proprioception"


def attach(task: Task) -> None:
    """Let ``task`` be observed as its options say.

    :raises TaskError: there is no such observation.
    :raises ValueError: the robot does not have what it measures.
    """
    options = task.options
    if not isinstance(options, CommonOptions):
        return
    if options.history < 1:
        raise ValueError(f"history = {options.history}: expected at least 1")
    task.observed_steps = options.history
    if options.observe == PROPRIOCEPTION:
        task.observed_by = Terms(proprioception(task))
    elif options.observe != FULL:
        raise TaskError(f'observe = "{options.observe}": expected "{FULL}" or "{PROPRIOCEPTION}"')


def proprioception(task: Task) -> list[Term]:
    """Return the terms of angular velocity and gravity in the axes of the root where it moves, of the
    positions of the joints against the starting pose and their velocities, the last action, and the
    command or target.

    :raises ValueError: no encoder measures a joint, or actions are not from -1 to 1.
    """
    model = task.model
    joints = joints_of(task)
    others = sorted({*joints} - {*joints_with_encoders(task)})
    if others:
        names = joined(joint_name(model, joint) for joint in others)
        raise ValueError(
            f'no encoder gives the orientation of {names}, which is no hinge or slide; write observe = "{FULL}"'
        )
    if not isinstance(task.actions, Scaled):
        raise ValueError(f'its actions are not from -1 to 1; write observe = "{FULL}"')  # noqa: TRY004 - the task does not fit
    columns, dofs = addresses(model, joints)
    of_robot = [
        offset_term(model, columns, task.pose[columns]),
        velocity_term(model, dofs),
        last_action(model),
        task.goal_term(),
    ]
    try:
        root = root_motion_of(task)
    except NoRootError:
        return of_robot
    return [
        labelled(vector("angular velocity", "rad/s"), lambda states: root.motion(states).spin),
        labelled(vector("gravity", NUMBER), lambda states: -root.motion(states).up),
        *of_robot,
    ]


def joints_of(task: Task) -> list[int]:
    """Return the numbers of the joints of the robot that ``task`` is about, without its root."""
    model = task.model
    try:
        root = root_motion_of(task)
    except NoRootError:
        data = posed_data(model, task.pose)
        return joints_in(model, set(driven_trees(model, data).tolist()))
    of_positions = set(root.joints.tolist())
    return [joint for joint in range(model.njnt) if int(model.jnt_qposadr[joint]) in of_positions]


def joints_with_encoders(task: Task) -> list[int]:
    """Return the hinges and slides of :func:`joints_of`."""
    model = task.model
    return [joint for joint in joints_of(task) if joint_type(model, joint) in (HINGE, SLIDE)]
