"""Makes what a request for an examination names: the robot, however it comes, and its environment."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import mujoco

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest, RobotSetting
from orchestrator.core.robot_sources import (
    MJCF_SUFFIX,
    RobotFormat,
    converter_of,
    how_made,
    robot_formats,
)
from orchestrator.core.worker_spec import is_algorithm_class
from orchestrator.worker.envs.simulation_factory import observed_simulation
from orchestrator.worker.mjspec.spec_elements import EditError
from orchestrator.worker.robots import converted_robot, made_robot, model_checks
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.compiling import (
    MujocoAbortedError,
    compile_staged,
    guard_compiler,
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
from orchestrator.worker.robots.model_examination import examined_model
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks import find_task, gymnasium_tasks

GYMNASIUM = "gymnasium:"
PARTS = ("include", "model")
"""Elements that name another MJCF."""
ModelMeasurement: TypeAlias = Callable[[mujoco.MjModel], dict[str, Any]]
"""Gives values for JSON by name."""
_NAME = re.compile(r"[A-Za-z_][\w.:-]*", re.ASCII)


def refusal(problem: str, *, errno: int | None = None) -> ExaminationAnswer:
    return ExaminationAnswer(problem=" ".join(problem.split()), errno=errno)


def unfit(error: BundleError | UnfitError) -> ExaminationAnswer:
    told = error if isinstance(error, UnfitError) else UnfitError(str(error))
    return dataclasses.replace(
        refusal(str(error)),
        cause=told.cause,
        key=told.key,
        process_exits=isinstance(error, MujocoAbortedError),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a request names, as far as it could be made."""

    answer: ExaminationAnswer
    environment: Any = None
    """The simulation of a task, or the spaces of another environment's observations and actions;
    None where something is wrong, or a simulation is not asked for."""

    def with_answer(self, answer: ExaminationAnswer) -> Prepared:
        return dataclasses.replace(self, answer=answer)


class RobotPreparation:
    """Prepares robots and environments.

    :param cleanup: removes afterwards what was made for it.
    :param makes_simulation: whether the simulation of a task is wanted, too.
    :param measure_model: measures the compiled model, of which nothing else is examined then.
    """

    def __init__(
        self,
        recent: RecentRobot,
        cleanup: contextlib.ExitStack,
        *,
        makes_simulation: bool,
        measure_model: ModelMeasurement | None = None,
    ) -> None:
        self._recent = recent
        self._cleanup = cleanup
        self._makes_simulation = makes_simulation
        self._measure_model = measure_model

    def prepared(self, request: ExaminationRequest) -> Prepared:
        """What ``request`` names. :raises BundleError, UnfitError: it cannot be trained."""
        _import_before_users(request)
        _check_algorithm(request)
        if request.robot_maker is not None:
            return self._made(request)
        xml = _xml(request)
        if not request.is_environment and (xml is None or not (request.task or request.alone)):
            raise UnfitError("expected a robot (xml) and a task, or an env or entry_point")
        if xml is None:
            warnings: list[str] = []
            spaces = check_environment(request, None, warnings)
            answer = ExaminationAnswer(warnings=tuple(warnings))
            return Prepared(answer=answer, environment=spaces)
        _refuse_source_of_format(xml)
        converter = converter_of(xml.name, request.robot_settings)
        if converter is not None and converter.suffix == MJCF_SUFFIX and request.alone:
            return self._alone_and_completed(converter, request, xml)
        if converter is not None:
            return self._converted(converter, request)
        if request.alone:
            return self._alone(request, xml)
        return self._robot(request, xml)

    def _made(self, request: ExaminationRequest) -> Prepared:
        """A robot that a function of the user makes."""
        folder = self._cleanup.enter_context(TemporaryFolder())
        xml = made_robot.make(request, Path(folder))
        made = self._prepared_or_unfit(dataclasses.replace(request, xml=str(xml), robot_maker=None))
        return made.with_answer(made_robot.answer_without_folder(made.answer, request, folder))

    def _prepared_or_unfit(self, request: ExaminationRequest) -> Prepared:
        try:
            return self.prepared(request)
        except (BundleError, UnfitError) as error:
            return Prepared(answer=unfit(error))

    def _converted(self, robot_format: RobotFormat, request: ExaminationRequest) -> Prepared:
        """A robot in a file of another format.

        Where its physics diverges, other settings are tried, and chosen or recommended.
        """
        converted, others = self._convert(robot_format, request)
        answer = converted.answer
        if answer.diverges and (request.alone or answer.problem is not None):
            answer = self._answer_of_others(robot_format, request, answer, others)
        if answer is not converted.answer:  # its environment has other settings
            converted = Prepared(answer=answer)
        return converted.with_answer(converted_robot.answer_with_choices(answer, robot_format))

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
        preparation = RobotPreparation(self._recent, self._cleanup, makes_simulation=False)
        tried = list[RobotSetting]()
        while others:
            tried += others
            settings = {**request.robot_settings, **{one.key: one.value for one in tried}}
            again = dataclasses.replace(request, robot_settings=settings, stage_to=None)
            converted, others = preparation._convert(robot_format, again)
            other = converted.answer
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

    def _convert(
        self, robot_format: RobotFormat, request: ExaminationRequest
    ) -> tuple[Prepared, Sequence[RobotSetting]]:
        """The robot with the settings of ``request``, and settings with which physics may be stable
        where it diverges.
        """
        folder = self._cleanup.enter_context(TemporaryFolder())
        made = converted_robot.convert(robot_format, request, Path(folder))
        as_mjcf = dataclasses.replace(request, xml=str(made.xml), robot_settings={})
        converted = self._prepared_or_unfit(as_mjcf)
        answer = converted_robot.answer_about_source(converted.answer, request, made)
        return converted.with_answer(answer), made.if_diverging

    def _alone_and_completed(
        self, mjcf: RobotFormat, request: ExaminationRequest, xml: Path
    ) -> Prepared:
        """An MJCF that may be a part of a robot, and is completed if it is none."""
        plain = self._alone(dataclasses.replace(request, robot_settings={}), xml)
        if plain.answer.fragment is not None or not plain.answer.figures:
            return plain
        completed = self._converted(mjcf, request)
        answer = dataclasses.replace(
            completed.answer, includes=plain.answer.includes, outside=plain.answer.outside
        )
        return completed.with_answer(answer)

    def _alone(self, request: ExaminationRequest, xml: Path) -> Prepared:
        """A file that may be no robot, but a part of one."""
        root_tag, includes = _root_and_includes(xml)
        for one in robot_formats():
            if root_tag == one.root:
                renamed = f"{xml.stem}{one.suffix}"
                raise UnfitError(
                    f"{xml}: is {one.with_article}; rename it to {renamed}, by which {one.with_article} is known"
                )
        if root_tag == "mujocoinclude":
            part = "a part for other files to include (<mujocoinclude>), not a robot"
            return Prepared(answer=ExaminationAnswer(fragment=part))
        if root_tag is not None and root_tag.lower() != "mujoco":
            answer = ExaminationAnswer(
                problem=f"{xml}: the root element is <{root_tag}>, expected <mujoco>",
                fragment=f"not an MJCF: the root element is <{root_tag}>",
            )
            return Prepared(answer=answer)
        try:
            robot = self._robot(request, xml)
        except (BundleError, UnfitError) as error:  # its includes are reported nevertheless
            robot = Prepared(answer=unfit(error))
        return robot.with_answer(dataclasses.replace(robot.answer, includes=includes))

    def _robot(self, request: ExaminationRequest, xml: Path) -> Prepared:
        findings = ModelFindings()
        source = _read_source(request, xml, self._recent, findings)
        edited = _edit(source, request, xml)
        if edited is not None and self._measure_model is not None:
            return Prepared(answer=ExaminationAnswer(measured=self._measure_model(edited.model)))
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
                measured = self._measure_model(model)
                return Prepared(answer=dataclasses.replace(answer, measured=measured))
            answer = examined_model(model, answer, findings, request, staged)
        if answer.problem is not None:
            about_robot = dataclasses.replace(
                answer,
                problem=f"{bundle.origin / bundle.main}: {answer.problem}",
                xml=None,
                hash=answer.hash if request.alone else None,
            )
            return Prepared(answer=about_robot)
        if request.is_environment:
            warnings = list(answer.warnings)
            spaces = check_environment(request, staged, warnings)
            answer = dataclasses.replace(answer, warnings=tuple(warnings))
            return Prepared(answer=answer, environment=spaces)
        if not self._makes_simulation or answer.task is None:
            return Prepared(answer=answer)
        simulation = observed_simulation(
            staged,
            answer.task,
            request.task_options,
            request.randomize,
            asymmetric=request.asymmetric,
        )
        return Prepared(answer=answer, environment=simulation)


def _refuse_source_of_format(xml: Path) -> None:
    """:raises UnfitError: it is a file of which one of a format is made first."""
    how = how_made(xml.name)
    if how is not None:
        raise UnfitError(f"{xml}: {how}")


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
    if request.is_environment:
        if request.robot_maker is not None:
            import gymnasium  # noqa: F401
    elif request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
        if request.task is not None:
            with contextlib.suppress(ValueError):  # reported later
                find_task(request.task)


def _check_algorithm(request: ExaminationRequest) -> None:
    """:raises UnfitError: the algorithm is to be a class, and there is none."""
    if not is_algorithm_class(request.algo):
        return
    from orchestrator.worker.training import algorithms

    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    try:
        algorithms.class_of(request.algo)
    except failures.AlgorithmError as error:
        raise UnfitError(str(error), "settings", "algo") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The robot before ``model_edits``."""

    bundle: Bundle
    variants: RobotVariants | None
    """None where nothing is edited."""
    hash: str
    outside: str | None
    """Which file lies outside of the allowed folders."""


def _read_source(
    request: ExaminationRequest, xml: Path, recent: RecentRobot, findings: ModelFindings
) -> _Source:
    """The robot as its files are.

    :raises BundleError: as :func:`collect`.
    :raises UnfitError: a file lies outside of the allowed folders, and it is not examined alone.
    """
    limit_bytes = MAX_TOTAL_BYTES
    if request.memory_mib is not None:
        limit_bytes = min(limit_bytes, request.memory_mib << 20)
    variants = recent.variants(xml, limit_bytes) if request.model_edits else None
    bundle = collect(xml, limit_bytes) if variants is None else variants.bundle
    outside = None if request.allow_outside else bundle.outside(request.job_folder)
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


@contextlib.contextmanager
def _edits_explained(xml: Path) -> Iterator[None]:
    try:
        yield
    except EditError as error:
        raise UnfitError(f"{xml}: {error}") from None


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
