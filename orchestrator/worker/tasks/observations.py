"""What a policy observes in place of what its task gives: ``observe`` and ``history`` of
``task_options``.

``"proprioception"`` is what a robot's own sensors give: a gyroscope, encoders, and what its
controller knows. What is not among it (the velocity of the root, heights, contacts) a real robot
does not measure.
"""

from __future__ import annotations

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.joints import SCALAR, joint_name
from orchestrator.worker.mjmodel.robot import driven_trees, joints_in
from orchestrator.worker.mjmodel.structure import addresses, posed_data
from orchestrator.worker.tasks.base import Task
from orchestrator.worker.tasks.input_names import NUMBER, vector
from orchestrator.worker.tasks.motion import root_motion_of
from orchestrator.worker.tasks.task_options import CommonOptions
from orchestrator.worker.tasks.terms import (
    Term,
    Terms,
    labelled,
    last_action,
    offset_term,
    velocity_term,
)


def attach(task: Task) -> None:
    """Let ``task`` be observed as its options say.

    :raises ValueError: the robot does not have what is observed.
    """
    options = task.options
    if isinstance(options, CommonOptions):
        task.observed_steps = options.history
        if options.observe == "proprioception":
            task.observed_by = Terms(proprioception(task))


def proprioception(task: Task) -> list[Term]:
    """Return the terms of angular velocity and gravity in the axes of the root where it moves, of the
    positions of the joints against the starting pose and their velocities, the last action, and the
    command or target.

    :raises ValueError: no encoder measures a joint.
    """
    model = task.model
    joints = joints_of(task)
    others = {*joints} - {*joints_with_encoders(task)}
    if others:
        names = joined(joint_name(model, joint) for joint in sorted(others))
        raise ValueError(
            f'no encoder gives the orientation of {names}, which is no hinge or slide; write observe = "full"'
        )
    columns, dofs = addresses(model, joints)
    of_robot = [
        offset_term(model, columns, task.pose[columns]),
        velocity_term(model, dofs),
        last_action(model),
        task.goal_term(),
    ]
    root = root_motion_of(task)
    if root is None:
        return of_robot
    return [
        labelled(vector("angular velocity", "rad/s"), lambda states: root.motion(states).spin),
        labelled(vector("gravity", NUMBER), lambda states: -root.motion(states).up),
        *of_robot,
    ]


def joints_of(task: Task) -> list[int]:
    """Return the numbers of the joints of the robot that ``task`` is about, without its root."""
    root = root_motion_of(task)
    if root is not None:
        return root.joint_numbers
    data = posed_data(task.model, task.pose)
    return joints_in(task.model, set(driven_trees(task.model, data).tolist()))


def joints_with_encoders(task: Task) -> list[int]:
    """Return the hinges and slides of :func:`joints_of`."""
    model = task.model
    return [joint for joint in joints_of(task) if model.jnt_type[joint] in SCALAR]
