"""What a policy observes in place of what its task gives: ``observe`` and ``history`` of
``task_options``.

It consists of terms, as the observations of built-in tasks do. :class:`Sensors` has the terms that a
robot's own sensors give: a gyroscope, encoders, and what its controller knows. What is not among
them (the velocity of the root, heights, contacts) a real robot does not measure.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence

import mujoco

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.joints import HINGE, SLIDE, joint_name, joint_type
from orchestrator.worker.mjmodel.robot import driven_trees, joints_in
from orchestrator.worker.mjmodel.root import NoRootError
from orchestrator.worker.mjmodel.structure import Floats, addresses, posed_data
from orchestrator.worker.tasks import input_names, terms, users_class
from orchestrator.worker.tasks.actions import Scaled
from orchestrator.worker.tasks.base import Task
from orchestrator.worker.tasks.motion import Motion, root_motion_of
from orchestrator.worker.tasks.task_options import CommonOptions, TaskError
from orchestrator.worker.tasks.terms import UNLIMITED, Term, Terms, labelled

FULL = "full"
PROPRIOCEPTION = "proprioception"


class Observation:
    """What a policy observes; your own derives from this class and implements :meth:`make_terms`.

    :param task: as it was made for the robot ``model``.
    :raises ValueError: the robot does not have what a term measures, or names come twice.
    """

    def __init__(self, model: mujoco.MjModel, task: Task) -> None:
        self.model = model
        self.task = task
        self.terms = Terms(self.make_terms())

    def make_terms(self) -> Sequence[Term]:
        """Return the terms, in the order of their columns."""
        raise NotImplementedError

    # -- terms to choose from

    def angular_velocity(self) -> Term:
        """Of the root, in its own axes: what a gyroscope there gives."""
        return self._of_root("angular velocity", "rad/s", lambda motion: motion.spin)

    def gravity(self) -> Term:
        """The direction of gravity in the axes of the root, of length 1: what an inertial
        measurement unit there gives.
        """
        return self._of_root("gravity", input_names.NUMBER, lambda motion: -motion.up)

    def joint_positions(self, pattern: str = "*") -> Term:
        """Of the joints whose names fit ``pattern``, against the starting pose: what encoders
        give.
        """
        columns, _ = addresses(self.model, self._joints(pattern))
        start = self.task.pose[columns]
        return labelled(
            input_names.positions(self.model).take(columns).prefixed("offset of"),
            lambda states: states.qpos.take(columns, axis=1) - start,
        )

    def joint_velocities(self, pattern: str = "*") -> Term:
        """Of the joints whose names fit ``pattern``."""
        _, columns = addresses(self.model, self._joints(pattern))
        return labelled(
            input_names.velocities(self.model).take(columns),
            lambda states: states.qvel.take(columns, axis=1),
        )

    def last_action(self) -> Term:
        """What the policy gave last, within its bounds, whenever that takes effect; zeros when an
        episode begins.
        """
        if not isinstance(self.task.actions, Scaled):
            raise ValueError(  # noqa: TRY004 - the robot does not fit
                "a last action is there only where actions are from -1 to 1; choose terms in a class of yours, without "
                f'last_action(), or write observe = "{FULL}"'
            )
        return terms.last_action(self.model)

    def goal(self) -> Term:
        """What the episode aims at now, such as a command: no numbers where a task has no goals."""
        return self.task.goal_term()

    def sensor(self, name: str) -> Term:
        """A sensor of the MJCF, in its own unit and axes."""
        model = self.model
        sensor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        if sensor < 0:
            named = [model.sensor(number).name for number in range(model.nsensor)]
            has = joined(f'"{one}"' for one in named if one) or "none with a name"
            raise ValueError(
                f'the robot has no sensor "{name}"; it has {has}: name one of its sensors, or add this one to <sensor> '
                "in its MJCF"
            )
        first = int(model.sensor_adr[sensor])
        columns = slice(first, first + int(model.sensor_dim[sensor]))
        return labelled(
            input_names.of_sensor(model, sensor),
            lambda states: states.fields["sensordata"][:, columns],
            UNLIMITED,
            fields=("sensordata",),
        )

    # -- what terms share

    def _of_root(self, quantity: str, unit: str, value: Callable[[Motion], Floats]) -> Term:
        """:raises ValueError: the robot stands on a fixed base."""
        try:
            root = root_motion_of(self.task)
        except NoRootError as error:
            raise ValueError(
                f"nothing turns with the robot's root: {error}; leave out angular_velocity() and gravity()"
            ) from None
        return labelled(
            input_names.vector(quantity, unit), lambda states: value(root.motion(states))
        )

    def _joints(self, pattern: str) -> list[int]:
        """Return the numbers of the joints of the robot, without its root.

        :raises ValueError: none fits, or one is no hinge or slide.
        """
        model = self.model
        known = joints_of(self.task)
        fitting = [
            joint for joint in known if fnmatch.fnmatchcase(model.joint(joint).name, pattern)
        ]
        if not fitting:
            has = joined(joint_name(model, joint) for joint in known) or "none"
            raise ValueError(
                f'no joint of the robot fits "{pattern}"; it has {has}: give a pattern that fits some of these, or '
                "leave the term out"
            )
        others = [joint for joint in fitting if joint_type(model, joint) not in (HINGE, SLIDE)]
        if others:
            names = joined(joint_name(model, joint) for joint in others)
            raise ValueError(
                f'no encoder gives the orientation of {names}, which is no hinge or slide; write observe = "{FULL}", '
                "or a class of yours"
            )
        return fitting


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


class Sensors(Observation):
    """``"proprioception"``: angular velocity and gravity in the axes of the root where it moves,
    positions of the joints against the starting pose and their velocities, the last action, and the
    command or target.
    """

    def make_terms(self) -> Sequence[Term]:
        of_robot = [
            self.joint_positions(),
            self.joint_velocities(),
            self.last_action(),
            self.goal(),
        ]
        try:
            root_motion_of(self.task)
        except NoRootError:
            return of_robot
        return [self.angular_velocity(), self.gravity(), *of_robot]


def attach(task: Task) -> None:
    """Let ``task`` be observed as its options say.

    :raises TaskError: there is no such observation, or an error in the user's own.
    :raises ValueError: the robot does not have what it measures.
    """
    options = task.options
    if not isinstance(options, CommonOptions):
        return
    if options.history < 1:
        raise ValueError(f"history = {options.history}: expected at least 1")
    task.observed_steps = options.history
    observe = options.observe
    if observe == FULL:
        return
    what = f'observe = "{observe}"'
    if observe == PROPRIOCEPTION:
        kind: type[Observation] = Sensors
    elif ":" in observe:
        kind = users_class.load(observe, Observation, what)
    else:
        raise TaskError(
            f'{what}: expected "{FULL}", "{PROPRIOCEPTION}" or a class of yours as "module:Class"'
        )
    with users_class.errors_told(what, "making it", is_ours=kind is Sensors):
        observation = kind(task.model, task)
    if not hasattr(observation, "terms"):
        raise TaskError(f"{what}: its __init__ does not call super().__init__(model, task)")
    task.observed_by = observation
