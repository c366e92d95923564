"""What a policy observes in place of what its task gives: ``observe`` and ``history`` of
``task_options``.

It consists of terms, as the observations of built-in tasks do. :class:`Sensors` has the terms that a
robot's own sensors give: a gyroscope, encoders, and what its controller knows. What is not among
them (the velocity of the root, heights, contacts) a real robot does not measure.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from orchestrator.core.text import joined
from orchestrator.worker.mjmodel.joints import HINGE, SLIDE, joint_name, joint_type
from orchestrator.worker.mjmodel.robot import driven_trees, joints_in
from orchestrator.worker.mjmodel.root import NoRootError
from orchestrator.worker.mjmodel.structure import Floats, addresses, posed_data
from orchestrator.worker.tasks import input_names, reference_frames, units, users_class
from orchestrator.worker.tasks.actions import Scaled
from orchestrator.worker.tasks.base import LAST_ACTION, States, Task
from orchestrator.worker.tasks.motion import Motion, Proprioception, root_motion_of
from orchestrator.worker.tasks.task_options import CommonOptions, TaskError
from orchestrator.worker.tasks.terms import UNLIMITED, Term, Terms

FULL = "full"
PROPRIOCEPTION = "proprioception"
AXES = {1: ("",), 3: (" x", " y", " z"), 4: (" w", " x", " y", " z")}
"""Numbers of a sensor → what is behind its name in the name of each."""


class Observation:
    """What a policy observes; your own derives from this class and implements :meth:`make_terms`.

    :param task: as it was made for the robot ``model``.
    :raises ValueError: the robot does not have what a term measures, or names come twice.
    """

    def __init__(self, model: mujoco.MjModel, task: Task) -> None:
        self.model = model
        self.task = task
        self.terms = Terms(self.make_terms())
        makes_other_values = type(self).observe is not Observation.observe
        self.limits: Floats | None = None if makes_other_values else self.terms.limits
        """``(2, n)`` lower and upper bounds of the values; None where a class of the user makes them
        in another way."""

    def make_terms(self) -> Sequence[Term]:
        """The terms, in the order of their columns."""
        raise NotImplementedError

    def observe(self, states: States) -> NDArray[np.float32]:
        """``(n_envs, len(names))``, a new array."""
        return self.terms.observe(states)

    # -- terms to choose from

    def angular_velocity(self) -> Term:
        """Of the root, in its own axes: what a gyroscope there gives."""
        return self._of_root("angular velocity", "rad/s", lambda motion: motion.spin)

    def gravity(self) -> Term:
        """The direction of gravity in the axes of the root, of length 1: what an inertial
        measurement unit there gives.
        """
        return self._of_root("gravity", units.NUMBER, lambda motion: -motion.up)

    def joint_positions(self, pattern: str = "*") -> Term:
        """Of the joints whose names fit ``pattern``, against the starting pose: what encoders
        give.
        """
        joints = self._joints(pattern)
        columns, _ = addresses(self.model, joints)
        names = input_names.prefixed("offset of", input_names.positions(self.model)[columns])
        start = self.task.pose[columns]
        return Term(
            names=list(names),
            units=units.of_observations(self.model, list(names)),
            values=lambda states: states.qpos.take(columns, axis=1) - start,
        )

    def joint_velocities(self, pattern: str = "*") -> Term:
        """Of the joints whose names fit ``pattern``."""
        joints = self._joints(pattern)
        _, columns = addresses(self.model, joints)
        names = list(input_names.velocities(self.model)[columns])
        return Term(
            names=names,
            units=units.of_observations(self.model, names),
            values=lambda states: states.qvel.take(columns, axis=1),
        )

    def last_action(self) -> Term:
        """What the policy gave last, within its bounds, whenever that takes effect; zeros when an
        episode begins.
        """
        has_unit_actions = isinstance(self.task.actions, Scaled)
        if not has_unit_actions:
            raise ValueError(
                "a last action is there only where actions are from -1 to 1; choose terms in a class of yours, without "
                f'last_action(), or write observe = "{FULL}"'
            )
        names = input_names.prefixed("last action", input_names.controls(self.model))
        return Term(
            names=list(names),
            units=[units.NUMBER] * len(names),
            values=lambda states: states.fields[LAST_ACTION],
            fields=(LAST_ACTION,),
        )

    def goal(self) -> Term:
        """What the episode aims at now, such as a command: no terms where a task has no goals."""
        names = self.task.names_of_goal()
        return Term(
            names=names,
            units=units.of_observations(self.model, names),
            values=lambda states: states.goals,
        )

    def sensor(self, name: str) -> Term:
        """A sensor of the MJCF, in its own unit and axes."""
        model = self.model
        sensor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        if sensor < 0:
            known = [model.sensor(number).name for number in range(model.nsensor)]
            has = joined(f'"{one}"' for one in known if one) or "none with a name"
            raise ValueError(
                f'the robot has no sensor "{name}"; it has {has}: name one of its sensors, or add this one to <sensor> '
                "in its MJCF"
            )
        first, size = int(model.sensor_adr[sensor]), int(model.sensor_dim[sensor])
        endings = AXES.get(size, tuple(f" {number}" for number in range(size)))
        return Term(
            names=[f"{name}{ending}" for ending in endings],
            units=[units.of_sensor(model, sensor)] * size,
            values=lambda states: states.fields["sensordata"][:, first : first + size],
            limit=UNLIMITED,
            frame=_frame_of_sensor(model, sensor),
            fields=("sensordata",),
        )

    # -- what terms share

    @functools.cached_property
    def root_motion(self) -> Proprioception:
        """:raises ValueError: the robot stands on a fixed base."""
        try:
            return root_motion_of(self.task)
        except NoRootError as error:
            raise ValueError(
                f"nothing turns with the robot's root: {error}; leave out angular_velocity() and gravity()"
            ) from None

    def _of_root(self, quantity: str, unit: str, of: Callable[[Motion], Floats]) -> Term:
        root = self.root_motion
        return Term(
            names=[f"{quantity} {axis}" for axis in "xyz"],
            units=[unit] * 3,
            values=lambda states: of(root.motion(states)),
            frame=reference_frames.of_body(self.model, root.root.body),
        )

    def _joints(self, pattern: str) -> list[int]:
        """Numbers of the joints of the robot, without its root.

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
    """Numbers of the joints of the robot that ``task`` is about, without its root."""
    model = task.model
    try:
        root = root_motion_of(task)
    except NoRootError:
        data = posed_data(model, task.pose)
        return joints_in(model, set(driven_trees(model, data).tolist()))
    of_positions = set(root.joints.tolist())
    return [joint for joint in range(model.njnt) if int(model.jnt_qposadr[joint]) in of_positions]


def joints_with_encoders(task: Task) -> list[int]:
    """The hinges and slides of :func:`joints_of`."""
    model = task.model
    return [joint for joint in joints_of(task) if joint_type(model, joint) in (HINGE, SLIDE)]


class Sensors(Observation):
    """``"proprioception"``: angular velocity and gravity in the axes of the root where it moves,
    positions of the joints against the starting pose and their velocities, the last action, and the
    command or target.
    """

    def make_terms(self) -> Sequence[Term]:
        try:
            root_motion_of(self.task)
        except NoRootError:
            of_root: Iterable[Term] = ()
        else:
            of_root = (self.angular_velocity(), self.gravity())
        return (
            *of_root,
            self.joint_positions(),
            self.joint_velocities(),
            self.last_action(),
            self.goal(),
        )


def attach(task: Task) -> None:
    """Let ``task`` be observed as its options say.

    :raises TaskError: there is no such observation, or an error in the user's own.
    :raises ValueError: the robot does not have what it measures.
    """
    observe, history = (_ours(task.options, name) for name in ("observe", "history"))
    if history is not None and history < 1:
        raise ValueError(f"history = {history}: expected at least 1")
    task.observed_steps = 1 if history is None else history
    if observe in (None, FULL):
        return
    kind = _class_of(observe)
    what = f'observe = "{observe}"'
    with users_class.errors_told(what, "making it", is_ours=kind is Sensors):
        observation = kind(task.model, task)
    if not hasattr(observation, "limits"):
        raise TaskError(f"{what}: its __init__ does not call super().__init__(model, task)")
    task.observed_by = observation


def _ours(options: object, name: str) -> Any:
    """The option of that name of :class:`CommonOptions`; None where a user's class has another one
    of its own, or the options are not derived from it.
    """
    kinds = type(options).__mro__
    declared = [kind for kind in kinds if name in inspect.get_annotations(kind)]
    is_ours = bool(declared) and declared[0] is CommonOptions
    return getattr(options, name) if is_ours else None


def _class_of(observe: str) -> type[Observation]:
    """:raises TaskError: there is none of that name."""
    if observe == PROPRIOCEPTION:
        return Sensors
    what = f'observe = "{observe}"'
    if ":" not in observe:
        raise TaskError(
            f'{what}: expected "{FULL}", "{PROPRIOCEPTION}" or a class of yours as "module:Class"'
        )
    kind: type[Observation] = users_class.load(observe, Observation, what)
    return kind


def _frame_of_sensor(model: mujoco.MjModel, sensor: int) -> str:
    """The name of the body or site that the sensor is fixed to; empty where it is of neither."""
    kind = mujoco.mjtObj(int(model.sensor_objtype[sensor]))
    if kind not in (mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtObj.mjOBJ_BODY, mujoco.mjtObj.mjOBJ_XBODY):
        return ""
    number = int(model.sensor_objid[sensor])
    found = model.site(number) if kind == mujoco.mjtObj.mjOBJ_SITE else model.body(number)
    return str(found.name)
