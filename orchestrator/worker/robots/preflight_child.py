"""Examines robots, tasks and environments in a child process before any launch.

``python -m orchestrator.worker.robots.preflight_child`` reads one :class:`ExaminationRequest` per
line from stdin and writes one :class:`ExaminationAnswer` per line to stdout, until the end of its
input or an answer with ``process_exits``. Anything wrong with a robot or environment is an answer's
``problem``, never a traceback. Gymnasium and torch are imported only when a request needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import mujoco
import numpy as np

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest, RobotSetting
from orchestrator.core.processes import users_code
from orchestrator.core.robot_sources import (
    MJCF_SUFFIX,
    RobotFormat,
    converter_of,
    how_made,
    mjcf_format,
    robot_formats,
)
from orchestrator.worker.envs.batch_interface import BatchSettings
from orchestrator.worker.envs.changing_task import check_changes
from orchestrator.worker.envs.divergence import PhysicsDiverged
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import (
    check_grid,
    make_simulation,
    observed_simulation,
)
from orchestrator.worker.mjspec.spec_elements import EditError
from orchestrator.worker.robots import converted_robot, made_robot, model_checks
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.compiling import (
    MujocoAbortedError,
    compile_staged,
    guard_compiler,
    too_large,
)
from orchestrator.worker.robots.env_check import UnfitError, check_environment
from orchestrator.worker.robots.file_collector import (
    MAX_TOTAL_BYTES,
    BundleError,
    read_regular_file,
)
from orchestrator.worker.robots.mjcf_elements import elements
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.model_edits import EditedRobot, RobotVariants
from orchestrator.worker.robots.model_summary import summarize
from orchestrator.worker.robots.stability_test import check_stability
from orchestrator.worker.runtime import failures, supervisor_connection
from orchestrator.worker.tasks import AUTO, choose, find_task, gymnasium_tasks, make_task
from orchestrator.worker.tasks.actions import scaled_actions
from orchestrator.worker.tasks.base import Task, find_keyframe
from orchestrator.worker.tasks.task_options import TaskError

GYMNASIUM = "gymnasium:"
PARTS = ("include", "model")
"""Elements that name another MJCF."""
NOTHING_MOVES = "has no joints, so nothing in it moves"
NO_ACTUATORS = "has no actuators, so there is nothing to train; add an <actuator> section"
EnvironmentUse: TypeAlias = Callable[[ExaminationAnswer, Any], ExaminationAnswer]
"""Called with the simulation of a task, or with the spaces of another environment's observations
and actions."""
ModelMeasurement: TypeAlias = Callable[[mujoco.MjModel], dict[str, Any]]
"""Gives values for JSON by name."""
_NAME = re.compile(r"[A-Za-z_][\w.:-]*", re.ASCII)


class RecentRobot:
    """The robot that was edited last: its next variant need not read, lay out and compile it
    again.
    """

    def __init__(self) -> None:
        self._variants: RobotVariants | None = None
        self._made_of: object = None

    def __enter__(self) -> RecentRobot:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()

    def _forget(self) -> None:
        if self._variants is not None:
            self._variants.__exit__()
            self._variants = None

    def variants(self, xml: Path, limit_bytes: int) -> RobotVariants:
        """Those of ``xml``; the same as in the call before if its files have not changed since.

        :raises BundleError: as :func:`collect`.
        """
        asked = (xml, limit_bytes)
        if self._variants is not None and self._made_of != (*asked, self._variants.bundle.stamp()):
            self._forget()
        if self._variants is None:
            self._variants = RobotVariants(collect(xml, limit_bytes))
            self._made_of = (*asked, self._variants.bundle.stamp())
        return self._variants


def check(request: ExaminationRequest, recent: RecentRobot | None = None) -> ExaminationAnswer:
    """Answer one request; never raises because of what the request names.

    :param recent: of the request before, if the same robot may come again.
    """
    try:
        with contextlib.ExitStack() as cleanup:
            recent = recent or cleanup.enter_context(RecentRobot())
            measure_model = _measure_model_for(request)
            if measure_model is not None:
                return _Examination(recent, cleanup, None, measure_model).examine(request)
            use = _measure_for(request) or _start_policy_check(request, cleanup)
            return _Examination(recent, cleanup, use).examine(request)
    except (BundleError, UnfitError) as error:
        return _unfit(error)
    except OSError as error:
        return _refusal(
            f"{error.filename or request.robot}: {error.strerror or error}", errno=error.errno
        )
    except MemoryError:
        return _refusal(f"{request.robot}: {too_large(request.memory_mib)}")
    except Exception as error:  # the other requests must be answered, whatever caused this
        return _refusal(failures.describe(error))


def _refusal(problem: str, *, errno: int | None = None) -> ExaminationAnswer:
    return ExaminationAnswer(problem=" ".join(problem.split()), errno=errno)


def _unfit(error: BundleError | UnfitError) -> ExaminationAnswer:
    cause = error.cause if isinstance(error, UnfitError) else "robot"
    return dataclasses.replace(
        _refusal(str(error)), cause=cause, process_exits=isinstance(error, MujocoAbortedError)
    )


def _measure_for(request: ExaminationRequest) -> EnvironmentUse | None:
    """Measures what a feature asks for; None where nothing is asked for."""
    measurement = request.measurement
    if measurement is None:
        return None
    module = importlib.import_module(measurement.module)

    def measure(answer: ExaminationAnswer, simulation: Any) -> ExaminationAnswer:
        values = module.measured(request, answer, simulation, measurement.settings)
        return dataclasses.replace(answer, measured=values)

    return measure


def _measure_model_for(request: ExaminationRequest) -> ModelMeasurement | None:
    """Measures what a feature asks for of the compiled model; None where it asks for nothing."""
    measurement = request.measurement
    if measurement is None or not measurement.of_model:
        return None
    measure: ModelMeasurement = importlib.import_module(measurement.module).measured_model
    return measure


def _start_policy_check(
    request: ExaminationRequest, cleanup: contextlib.ExitStack
) -> EnvironmentUse | None:
    """Checks ``init``; None where there is none, or it cannot be checked.

    The environment of a source that is still to be trained is made before that of the job.
    """
    if not request.init:
        return None
    # Here, before the user's folder is on the path.
    from orchestrator.worker.robots import start_policy_check

    of_source: Any = None
    source = start_policy_check.source_of(request)
    if source is not None:
        of_source = _environment_of(source, cleanup)
        if of_source is None:  # something is wrong with it, which its own examination tells
            return None

    def check_init(answer: ExaminationAnswer, environment: Any) -> ExaminationAnswer:
        return start_policy_check.check_init(request, answer, environment, of_source)

    return check_init


def _environment_of(request: ExaminationRequest, cleanup: contextlib.ExitStack) -> Any:
    """The environment that a request names; None where something is wrong with it."""

    def leave_answer(answer: ExaminationAnswer, _: object) -> ExaminationAnswer:
        return answer

    examination = _Examination(cleanup.enter_context(RecentRobot()), cleanup, leave_answer)
    with contextlib.suppress(BundleError, UnfitError, OSError, ValueError):
        examination.examine(request)
    return examination.environment


class _Examination:
    """The examination of one request.

    :param cleanup: removes afterwards what was made for it.
    :param use: makes the answer of the environment, if nothing is wrong with it; None: as it is.
    :param measure_model: measures the compiled model, of which nothing else is examined then.
    """

    def __init__(
        self,
        recent: RecentRobot,
        cleanup: contextlib.ExitStack,
        use: EnvironmentUse | None,
        measure_model: ModelMeasurement | None = None,
    ) -> None:
        self._recent = recent
        self._cleanup = cleanup
        self._use = use
        self._measure_model = measure_model
        self.environment: Any = None
        """What ``use`` was called with; None where it was not."""

    def examine(self, request: ExaminationRequest) -> ExaminationAnswer:
        """The answer to ``request``. :raises BundleError, UnfitError: it cannot be trained."""
        _import_before_users(request)
        if request.robot_maker is not None:
            return self._examine_made(request)
        xml = _xml(request)
        if not _is_environment(request) and (xml is None or not (request.task or request.alone)):
            raise UnfitError("expected a robot (xml) and a task, or an env or entry_point")
        if xml is None:
            return self._with_environment(ExaminationAnswer(), check_environment(request, None))
        _refuse_source_of_format(xml)
        converter = converter_of(xml.name, request.robot_settings)
        if converter is not None and converter.suffix == MJCF_SUFFIX and request.alone:
            return self._examine_alone_and_completed(converter, request, xml)
        if converter is not None:
            return self._examine_converted(converter, request)
        if request.alone:
            return self._examine_alone(request, xml)
        return self._examine_robot(request, xml)

    def _with_environment(self, answer: ExaminationAnswer, environment: Any) -> ExaminationAnswer:
        self.environment = environment
        return answer if self._use is None else self._use(answer, environment)

    def _examine_made(self, request: ExaminationRequest) -> ExaminationAnswer:
        """A robot that a function of the user makes."""
        folder = self._cleanup.enter_context(TemporaryFolder())
        xml = made_robot.make(request, Path(folder))
        try:
            answer = self.examine(dataclasses.replace(request, xml=str(xml), robot_maker=None))
        except (BundleError, UnfitError) as error:
            answer = _unfit(error)
        return made_robot.answer_without_folder(answer, request, folder)

    def _examine_converted(
        self, robot_format: RobotFormat, request: ExaminationRequest
    ) -> ExaminationAnswer:
        """A robot in a file of another format.

        Where its physics diverges, other settings are tried, and chosen or recommended.
        """
        answer, others = self._convert_and_examine(robot_format, request)
        if answer.diverges and (request.alone or answer.problem is not None):
            answer = self._answer_of_others(robot_format, request, answer, others)
        return converted_robot.answer_with_choices(answer, robot_format)

    def _answer_of_others(
        self,
        robot_format: RobotFormat,
        request: ExaminationRequest,
        answer: ExaminationAnswer,
        others: Sequence[RobotSetting],
    ) -> ExaminationAnswer:
        """``answer``, of a robot whose physics diverges, with other settings or a recommendation of
        them, if physics is stable with these.
        """
        examination = _Examination(self._recent, self._cleanup, None)
        tried = list[RobotSetting]()
        while others:
            tried += others
            settings = {**request.robot_settings, **{one.key: one.value for one in tried}}
            again = dataclasses.replace(request, robot_settings=settings, stage_to=None)
            other, others = examination._convert_and_examine(robot_format, again)
            if other.diverges and (others or answer.problem is None):
                continue
            if other.problem is not None:
                return answer
            if request.alone and not any(one.key in request.robot_settings for one in tried):
                chosen = (*other.chosen_settings, *tried)
                return dataclasses.replace(other, chosen_settings=chosen)
            if answer.problem is not None:
                cure = f"with {converted_robot.settings_text(robot_format, tried)} it does not"
                return dataclasses.replace(answer, problem=f"{answer.problem}; {cure}")
        return answer

    def _convert_and_examine(
        self, robot_format: RobotFormat, request: ExaminationRequest
    ) -> tuple[ExaminationAnswer, Sequence[RobotSetting]]:
        """The answer about the robot with the settings of ``request``, and settings with which
        physics may be stable where it diverges.
        """
        folder = self._cleanup.enter_context(TemporaryFolder())
        made = converted_robot.convert(robot_format, request, Path(folder))
        try:
            answer = self.examine(
                dataclasses.replace(request, xml=str(made.xml), robot_settings={})
            )
        except (BundleError, UnfitError) as error:
            answer = _unfit(error)
        return converted_robot.answer_about_source(answer, request, made), made.if_diverging

    def _examine_alone_and_completed(
        self, mjcf: RobotFormat, request: ExaminationRequest, xml: Path
    ) -> ExaminationAnswer:
        """An MJCF that may be a part of a robot, and is completed if it is none."""
        plain = self._examine_alone(dataclasses.replace(request, robot_settings={}), xml)
        if plain.fragment is not None or not plain.figures:
            return plain
        completed = self._examine_converted(mjcf, request)
        return dataclasses.replace(completed, includes=plain.includes)

    def _examine_alone(self, request: ExaminationRequest, xml: Path) -> ExaminationAnswer:
        """A file that may be no robot, but a part of one."""
        root_tag, includes = _root_and_includes(xml)
        for one in robot_formats():
            if root_tag == one.root:
                renamed = f"{xml.stem}{one.suffix}"
                raise UnfitError(
                    f"{xml}: is {one.with_article}; rename it to {renamed}, by which {one.with_article} is known"
                )
        if root_tag == "mujocoinclude":
            return ExaminationAnswer(
                fragment="a part for other files to include (<mujocoinclude>), not a robot"
            )
        if root_tag is not None and root_tag.lower() != "mujoco":
            problem = f"{xml}: the root element is <{root_tag}>, expected <mujoco>"
            return ExaminationAnswer(
                problem=problem, fragment=f"not an MJCF: the root element is <{root_tag}>"
            )
        try:
            answer = self._examine_robot(request, xml)
        except (BundleError, UnfitError) as error:  # its includes are reported nevertheless
            answer = _unfit(error)
        return dataclasses.replace(answer, includes=includes)

    def _examine_robot(self, request: ExaminationRequest, xml: Path) -> ExaminationAnswer:
        findings = ModelFindings()
        source = _read_source(request, xml, self._recent, findings)
        edited = _edit(source, request, xml)
        if edited is not None and self._measure_model is not None:
            return ExaminationAnswer(measured=self._measure_model(edited.model))
        bundle = source.bundle if edited is None else edited.bundle
        staging = request.stage_to or self._cleanup.enter_context(TemporaryFolder())
        staged = bundle.write(Path(staging))
        answer = ExaminationAnswer(
            xml=bundle.main,
            hash=source.hash if edited is None else bundle.hash,
            source_hash=source.hash,
            outside=source.outside,
        )
        with guard_compiler(xml, request.memory_mib):
            model = _compile(staged, bundle, edited, findings, request, xml)
            edited = None  # the memory of its model
            if self._measure_model is not None:
                return dataclasses.replace(answer, measured=self._measure_model(model))
            answer = _examine_model(model, answer, findings, request, staged)
        if answer.problem is not None:
            return dataclasses.replace(
                answer,
                problem=f"{bundle.origin / bundle.main}: {answer.problem}",
                xml=None,
                hash=answer.hash if request.alone else None,
            )
        if _is_environment(request):
            return self._with_environment(answer, check_environment(request, staged))
        if self._use is None or answer.task is None:
            return answer
        simulation = observed_simulation(
            staged,
            answer.task,
            request.task_options,
            request.randomize,
            asymmetric=request.asymmetric,
        )
        return self._with_environment(answer, simulation)


def _refuse_source_of_format(xml: Path) -> None:
    """:raises UnfitError: it is a file of which one of a format is made first."""
    how = how_made(xml.name)
    if how is not None:
        raise UnfitError(f"{xml}: {how}")


def _is_environment(request: ExaminationRequest) -> bool:
    """Whether it is of an environment of gymnasium or the user, which may have a robot, and not of a
    task.
    """
    return request.env is not None or request.entry_point is not None


def _xml(request: ExaminationRequest) -> Path | None:
    """The robot: where none is given, that of gymnasium's task."""
    if request.xml is not None:
        return Path(request.xml)
    if request.task is None or not request.task.startswith(GYMNASIUM):
        return None
    try:
        return gymnasium_tasks.default_xml(request.task)
    except ValueError as error:
        raise UnfitError(str(error), "settings") from None


def _import_before_users(request: ExaminationRequest) -> None:
    """Import what might otherwise find the user's modules, put their folder on the path, and import
    the task.

    That is before the memory limit.
    """
    robot_formats()  # features are found in the path as it is now
    if _is_environment(request):
        if request.robot_maker is not None:
            import gymnasium  # noqa: F401
    elif request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
        if request.task is not None:
            with contextlib.suppress(ValueError):  # reported later
                find_task(request.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The robot before ``model_edits``."""

    bundle: Bundle
    variants: RobotVariants | None
    """None where nothing is edited."""
    hash: str
    outside: str | None
    """What it refers to outside of its folder, if that is not allowed."""


def _read_source(
    request: ExaminationRequest, xml: Path, recent: RecentRobot, findings: ModelFindings
) -> _Source:
    """The robot as its files are.

    :raises BundleError: as :func:`collect`.
    :raises UnfitError: it refers to files outside of its folder, and is not examined alone.
    """
    limit_bytes = MAX_TOTAL_BYTES
    if request.memory_mib is not None:
        limit_bytes = min(limit_bytes, request.memory_mib << 20)
    variants = recent.variants(xml, limit_bytes) if request.model_edits else None
    bundle = collect(xml, limit_bytes) if variants is None else variants.bundle
    outside = None if request.allow_outside else bundle.outside
    if outside is not None:
        if not request.alone:
            raise UnfitError(outside)
        findings.warnings.append(outside)
    return _Source(
        bundle=bundle,
        variants=variants,
        hash=bundle.hash if variants is None else variants.source_hash,
        outside=outside,
    )


def _edit(source: _Source, request: ExaminationRequest, xml: Path) -> EditedRobot | None:
    """The robot with ``model_edits``; None where nothing is edited."""
    if source.variants is None:
        return None
    with _edits_explained(xml), guard_compiler(xml, request.memory_mib):
        return source.variants.edited_robot(request.model_edits)


def _compile(
    staged: Path,
    bundle: Bundle,
    edited: EditedRobot | None,
    findings: ModelFindings,
    request: ExaminationRequest,
    xml: Path,
) -> mujoco.MjModel:
    """The model of the staged robot."""
    model = compile_staged(
        staged, bundle, findings, request.memory_mib, is_edited=edited is not None
    )
    if edited is not None:
        with _edits_explained(xml):
            edited.check(model)
    elif model.nkey:
        spec = mujoco.MjSpec.from_file(str(staged))
        findings.warnings += model_checks.short_keyframes(spec, model)
    return model


def _examine_model(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
) -> ExaminationAnswer:
    """``answer`` with the findings on a compiled robot."""
    findings.problems += model_checks.numbers(model)
    if findings.problems:
        return _with_findings(answer, findings, summarize(model, mujoco.MjData(model)))
    # An environment may use the robot in its own way: every problem is only a warning.
    if _is_environment(request):
        summary = examine(model, findings, simulate_s=request.simulate_s)
        findings.warnings = [*findings.problems, *findings.warnings]
        findings.problems = []
        return _with_findings(answer, findings, summary)
    answer = _examine_task(model, answer, findings, request, staged)
    if model.nv == 0:
        return dataclasses.replace(answer, fragment=f"not a robot: {NOTHING_MOVES}")
    return answer


@contextlib.contextmanager
def _edits_explained(xml: Path) -> Iterator[None]:
    try:
        yield
    except EditError as error:
        raise UnfitError(f"{xml}: {error}") from None


def _examine_task(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
) -> ExaminationAnswer:
    tried = _try_task(model, answer, findings, request, staged)
    answer = tried.answer
    simulation = tried.simulation
    task = None if simulation is None else simulation.task
    summary = examine(model, findings, simulate_s=request.simulate_s, task=task)
    if simulation is not None and not findings.problems:
        try:
            _step_once(simulation)
        except (ValueError, PhysicsDiverged) as error:
            findings.problems.append(str(error))
            answer = dataclasses.replace(answer, cause=_cause(request, error))
    return _with_findings(answer, findings, summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TriedTask:
    answer: ExaminationAnswer
    """With the task, or with the reason why it does not fit."""
    simulation: Simulation | None
    """None where none could be made."""


def _try_task(
    model: mujoco.MjModel,
    answer: ExaminationAnswer,
    findings: ModelFindings,
    request: ExaminationRequest,
    staged: Path,
) -> _TriedTask:
    """Make the task that is asked for, and all that it is asked with."""
    simulation: Simulation | None = None
    if model.nu == 0:
        findings.problems.append(_no_actuators() if model.nv else NOTHING_MOVES)
        return _TriedTask(answer=answer, simulation=None)
    options = request.task_options
    try:
        name = request.task or AUTO
        reason = None
        if name == AUTO:
            choice = choose(model)
            name = choice.task
            reason = choice.reason
        task = make_task(name, model, options)
        asymmetric = request.asymmetric
        settings: BatchSettings = {"n_envs": 1, "seed": 0}
        simulation = Simulation(model, task, robot=staged.name, asymmetric=asymmetric, **settings)
        answer = dataclasses.replace(answer, task=name, task_reason=reason)
        findings.warnings += _options_without_effect(name, task, options)
        check_changes(name, model, options)
        if request.randomize:
            simulation = make_simulation(
                staged, name, options, request.randomize, asymmetric=asymmetric, **settings
            )
        if asymmetric and not simulation.privileged_names:
            findings.warnings.append(_nothing_for_critic(task))
        if request.evaluate:
            check_grid(staged, name, options, request.randomize, request.evaluate)
    except ValueError as error:
        # A robot examined alone may be for the user's own task.
        if request.alone:
            findings.warnings.append(str(error))
        else:
            findings.problems.append(str(error))
        answer = dataclasses.replace(answer, task_reason=str(error), cause=_cause(request, error))
    return _TriedTask(answer=answer, simulation=simulation)


def _no_actuators() -> str:
    mjcf = mjcf_format()
    return (
        f"{NO_ACTUATORS}, or {mjcf.adds_actuators}"
        if mjcf and mjcf.adds_actuators
        else NO_ACTUATORS
    )


def _options_without_effect(name: str, task: Task, given: Mapping[str, Any]) -> list[str]:
    """Warnings of options that the job sets and that do nothing for this robot."""
    return [
        f'task "{name}": task_options.{option} = {given[option]} has no effect on this robot: {why}'
        for option, why in task.unused_options.items()
        if given.get(option)
    ]


def _nothing_for_critic(task: Task) -> str:
    observed = (
        "the policy observes all that the task does"
        if task.observed_by is None
        else "task_options.observe leaves out nothing of what the task observes"
    )
    return (
        f"asymmetric = true has no effect, as {observed}, and randomize draws nothing that the critic would see: "
        'leave it out, or give the policy less, such as with task_options.observe = "proprioception"'
    )


def _step_once(simulation: Simulation) -> None:
    """Make one control step with an action of zeros.

    :raises TaskError: what it returns is not finite.
    :raises ValueError: its task cannot compute.
    :raises PhysicsDiverged: physics does.
    """
    simulation.reset()
    result = simulation.step(np.zeros((1, len(simulation.task.actions.low))))
    if not (np.isfinite(result.observations).all() and np.isfinite(result.rewards).all()):
        text = "observation or reward is not finite after one step with an action of zeros"
        raise TaskError(text, is_certain=False)


def _cause(request: ExaminationRequest, error: Exception) -> Literal["robot", "code", "settings"]:
    """What :attr:`ExaminationAnswer.cause` is for an error of a task."""
    if not isinstance(error, TaskError):
        return "robot"
    if error.is_certain:
        return "code" if request.task == AUTO else "settings"
    is_users = ":" in str(request.task)
    return "code" if is_users else "robot"  # a built-in task fails because of the robot


def examine(
    model: mujoco.MjModel, findings: ModelFindings, *, simulate_s: float, task: Task | None = None
) -> dict[str, Any]:
    """Add to ``findings``; return the model summary with ``steps_per_s``, physics steps per second
    on one thread.

    The model must have passed :func:`model_checks.numbers`.

    :param simulate_s: limit of the stability test in CPU seconds.
    :param task: gives the starting pose and the mapping from actions to controls; None for those of
        a task with default options.
    """
    data = mujoco.MjData(model)
    summary = {
        **summarize(model, data),
        "steps_per_s": None,
        "control_period_s": None if task is None else task.step_s,
    }
    key = find_keyframe(model, None) if task is None else task.key
    if task is not None:
        pose = task.pose
    elif key >= 0:
        pose = np.array(model.key_qpos[key])
    else:
        pose = np.array(model.qpos0)
    findings.warnings += [*model_checks.actuators(model, key), *model_checks.masses(model)]
    findings.warnings += [*model_checks.poses(model, key, pose), *model_checks.timestep(model)]
    data.qpos[:] = pose
    mujoco.mj_forward(model, data)
    findings.warnings += model_checks.start_contacts(model, data)
    if model.nv == 0:
        return summary
    actions = None
    rest = np.zeros(model.nu)
    if model.nu:
        actions = scaled_actions(model, key, None) if task is None else task.actions
        rest = np.asarray(actions.ctrl(actions.taken(np.zeros((1, model.nu))))[0], np.float64)
    wide = model_checks.servo_ranges(model)
    summary["steps_per_s"] = check_stability(
        model, data, pose, rest, actions, simulate_s, findings, cause=wide
    )
    texts = [*findings.problems, *findings.warnings]
    if wide is not None and not any(wide in text for text in texts):
        findings.warnings.insert(0, wide)
    return summary


def _with_findings(
    answer: ExaminationAnswer, findings: ModelFindings, summary: dict[str, Any]
) -> ExaminationAnswer:
    return dataclasses.replace(
        answer,
        problem="; ".join(findings.problems) or None,
        diverges=findings.diverges,
        warnings=tuple(findings.warnings),
        notes=tuple(findings.notes),
        figures=summary,
    )


def _root_and_includes(xml: Path) -> tuple[str | None, tuple[str, ...]]:
    """Tag of the root element (None if the file has none) and the real paths of the files it
    includes.
    """
    content = read_regular_file(xml, str(xml))
    tags = list(elements(content, PARTS))
    if not tags or not _NAME.fullmatch(tags[0].tag):
        return None, ()
    names = [
        attribute.value for element in tags if element.tag in PARTS for attribute in element.files
    ]
    return tags[0].tag, tuple(
        os.path.realpath(xml.parent / name.replace("\\", "/")) for name in names
    )


def main() -> NoReturn:
    supervisor_connection.attach()  # a hanging environment must not outlive the process that asked
    # stdout is for answers only: output of MuJoCo's C code or a user's environment goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as in a worker
    recent = RecentRobot()  # its files are in the folder that the process that asks removes
    for line in sys.stdin.buffer:
        with users_code.in_this_process():
            answer = check(ExaminationRequest.from_line(line), recent)
        answers.write(answer.to_line())
        answers.flush()
        if answer.process_exits:
            break
    sys.stderr.flush()
    os._exit(0)  # a normal exit would wait for the threads of the user's code


if __name__ == "__main__":
    main()
