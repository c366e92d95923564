"""From a request to an examined robot: make or convert, copy, edit, compile, check, make the simulation."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
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
from orchestrator.worker.robots import made_robot, model_checks
from orchestrator.worker.robots.bundle import collect
from orchestrator.worker.robots.compiling import (
    MujocoAbortedError,
    compile_staged,
    guard_compiler,
)
from orchestrator.worker.robots.converted_robot import ConvertedRobot
from orchestrator.worker.robots.env_check import UnfitError, check_environment
from orchestrator.worker.robots.file_collector import (
    MAX_TOTAL_BYTES,
    BundleError,
    files_read,
    read_regular_file,
)
from orchestrator.worker.robots.model_checks import ModelFindings
from orchestrator.worker.robots.model_edits import EditedRobot, edited_robot
from orchestrator.worker.robots.model_examination import examined_model
from orchestrator.worker.robots.xml_elements import elements
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks import find_task, gymnasium_tasks

GYMNASIUM = "gymnasium:"
ModelMeasurement: TypeAlias = Callable[[mujoco.MjModel], dict[str, Any]]
"""Gives values for JSON by name."""
_NAME = re.compile(r"[A-Za-z_][\w.:-]*", re.ASCII)


def refusal(problem: str, *, errno: int | None = None) -> ExaminationAnswer:
    return ExaminationAnswer(problem=" ".join(problem.split()), errno=errno)


def unfit(error: BundleError | UnfitError) -> ExaminationAnswer:
    answer = refusal(str(error))
    if isinstance(error, BundleError):
        return answer
    exits = isinstance(error, MujocoAbortedError)
    return dataclasses.replace(answer, cause=error.cause, key=error.key, process_exits=exits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a request names, as far as it could be made."""

    answer: ExaminationAnswer
    environment: Any = None
    """The simulation of a task, or the spaces of another environment's observations and actions;
    None where something is wrong, or a simulation is not asked for."""


class RobotPreparation:
    """Prepares robots and environments.

    :param cleanup: removes afterwards what was made for it.
    :param makes_simulation: whether the simulation of a task is wanted, too.
    :param measure_model: measures the compiled model, of which nothing else is examined then.
    """

    def __init__(
        self,
        cleanup: contextlib.ExitStack,
        *,
        makes_simulation: bool,
        measure_model: ModelMeasurement | None = None,
    ) -> None:
        self._cleanup = cleanup
        self._makes_simulation = makes_simulation
        self._measure_model = measure_model

    def prepared(self, request: ExaminationRequest) -> Prepared:
        """What ``request`` names. :raises BundleError, UnfitError: it cannot be trained."""
        _import_before_users(request)
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
        if how := how_made(xml.name):
            raise UnfitError(f"{xml}: {how}")
        converter = converter_of(xml.name, request.robot_settings)
        if converter is not None and converter.suffix == MJCF_SUFFIX and request.alone:
            # It may be a part of a robot; an MJCF without actuators is completed.
            plain = self._alone(dataclasses.replace(request, robot_settings={}), xml)
            if plain.answer.fragment is not None or not plain.answer.figures:
                return plain
            completed = self._converted(converter, request)
            includes, outside = plain.answer.includes, plain.answer.outside
            return _changed(completed, includes=includes, outside=outside)
        if converter is not None:
            return self._converted(converter, request)
        return self._alone(request, xml) if request.alone else self._robot(request, xml)

    def _prepared_or_unfit(self, request: ExaminationRequest) -> Prepared:
        try:
            return self.prepared(request)
        except (BundleError, UnfitError) as error:
            return Prepared(answer=unfit(error))

    def _temporary_folder(self) -> Path:
        return Path(self._cleanup.enter_context(TemporaryFolder()))

    def _made(self, request: ExaminationRequest) -> Prepared:
        """A robot that a function of the user makes."""
        folder = self._temporary_folder()
        xml = made_robot.make(request, folder)
        made = self._prepared_or_unfit(dataclasses.replace(request, xml=str(xml), robot_maker=None))
        made = _with_texts(made, f"{folder}{os.sep}", "")
        problem = made.answer.problem
        if problem is None or problem.startswith(str(request.robot_maker)):
            return made
        return _changed(made, problem=f"{request.robot}: {problem}")

    def _converted(self, robot_format: RobotFormat, request: ExaminationRequest) -> Prepared:
        """A robot in a file of another format, with a note of the settings that were chosen for it."""
        prepared = self._convert(robot_format, request)
        chosen = prepared.answer.chosen_settings
        if not chosen:
            return prepared
        reasons = "; ".join(one.reason for one in chosen)
        needed = _settings_text(robot_format, chosen)
        note = f"a job needs {needed}, which `init` writes; {reasons}"
        return _changed(prepared, notes=(note, *prepared.answer.notes))

    def _convert(self, robot_format: RobotFormat, request: ExaminationRequest) -> Prepared:
        """The robot as MJCF. Where its physics diverges, other settings are chosen if it is examined
        alone, and otherwise recommended.
        """
        worker = importlib.import_module(robot_format.worker)
        made: ConvertedRobot = worker.make_robot(request, self._temporary_folder())
        as_mjcf = dataclasses.replace(request, xml=str(made.xml), robot_settings={})
        prepared = _with_texts(self._prepared_or_unfit(as_mjcf), str(made.xml), str(request.xml))
        answer = prepared.answer
        problem = answer.problem
        if answer.diverges and made.if_diverging:
            others = {one.key: one.value for one in made.if_diverging}
            if request.alone and not others.keys() & request.robot_settings.keys():
                settings = {**request.robot_settings, **others}
                other = self._convert(
                    robot_format, dataclasses.replace(request, robot_settings=settings)
                )
                is_better = problem is not None or not other.answer.diverges
                if other.answer.problem is None and is_better:
                    chosen = (*other.answer.chosen_settings, *made.if_diverging)
                    return _changed(other, chosen_settings=chosen)
            elif problem is not None:
                problem += f"; try {_settings_text(robot_format, made.if_diverging)}"
        outside = () if made.outside is None else (made.outside,)
        return _changed(
            prepared,
            problem=problem,
            warnings=(*made.warnings, *outside, *answer.warnings),
            notes=(*made.notes, *(f"added: {text}" for text in made.added), *answer.notes),
            outside=made.outside,
            chosen_settings=made.chosen,
            includes=(),
        )

    def _alone(self, request: ExaminationRequest, xml: Path) -> Prepared:
        """A file that may be no robot, but a part of one."""
        root, includes = _root_and_includes(xml)
        for one in robot_formats():
            if root == one.root:
                raise UnfitError(
                    f"{xml}: is {one.with_article}; rename it to {xml.stem}{one.suffix}, by which "
                    f"{one.with_article} is known"
                )
        if root == "mujocoinclude":
            part = "a part for other files to include (<mujocoinclude>), not a robot"
            return Prepared(answer=ExaminationAnswer(fragment=part))
        if root is not None and root.lower() != "mujoco":
            what = f"the root element is <{root}>"
            answer = refusal(f"{xml}: {what}, expected <mujoco>")
            return Prepared(answer=dataclasses.replace(answer, fragment=f"not an MJCF: {what}"))
        try:
            robot = self._robot(request, xml)
        except (BundleError, UnfitError) as error:  # its includes are reported nevertheless
            robot = Prepared(answer=unfit(error))
        return _changed(robot, includes=includes)

    def _robot(self, request: ExaminationRequest, xml: Path) -> Prepared:
        """Copy, edit, compile and check an MJCF, and make what the job simulates."""
        findings = ModelFindings()
        memory_mib = request.memory_mib
        limit_bytes = MAX_TOTAL_BYTES
        if memory_mib is not None:
            limit_bytes = min(limit_bytes, memory_mib << 20)
        source = collect(xml, limit_bytes)
        outside = None if request.allow_outside else source.outside(request.job_folder)
        if outside is not None:
            if not request.alone:
                raise UnfitError(outside)
            findings.warnings.append(outside)
        edited: EditedRobot | None = None
        try:
            with guard_compiler(xml, memory_mib):
                if request.model_edits:
                    edited = edited_robot(source, request.model_edits)
                    if self._measure_model is not None:
                        return _measured(self._measure_model(edited.model))
                bundle = source if edited is None else edited.bundle
                folder = request.stage_to or self._temporary_folder()
                staged = bundle.write(Path(folder))
                model = compile_staged(staged, bundle, findings, memory_mib)
                if edited is not None:
                    edited.check(model)
                elif model.nkey:
                    spec = mujoco.MjSpec.from_file(str(staged))
                    findings.warnings += model_checks.short_keyframes(spec, model)
                if self._measure_model is not None:
                    return _measured(self._measure_model(model))
                answer = ExaminationAnswer(
                    xml=bundle.main, hash=bundle.hash, source_hash=source.hash, outside=outside
                )
                edited = None  # the memory of its model
                answer = examined_model(model, answer, findings, request, staged)
        except EditError as error:
            raise UnfitError(f"{xml}: {error}") from None
        if answer.problem is not None:
            problem = f"{bundle.xml}: {answer.problem}"
            robot_hash = answer.hash if request.alone else None
            return _changed(Prepared(answer=answer), problem=problem, xml=None, hash=robot_hash)
        environment: Any = None
        if request.is_environment:
            warnings = list(answer.warnings)
            environment = check_environment(request, staged, warnings)
            answer = dataclasses.replace(answer, warnings=tuple(warnings))
        elif self._makes_simulation and answer.task is not None:
            environment = observed_simulation(
                staged,
                answer.task,
                request.task_options,
                request.randomize,
                asymmetric=request.asymmetric,
            )
        return Prepared(answer=answer, environment=environment)


def _measured(measures: dict[str, Any]) -> Prepared:
    return Prepared(answer=ExaminationAnswer(measured=measures))


def _changed(prepared: Prepared, **fields: Any) -> Prepared:
    """``prepared`` with other fields of its answer."""
    answer = dataclasses.replace(prepared.answer, **fields)
    return dataclasses.replace(prepared, answer=answer)


def _with_texts(prepared: Prepared, old: str, new: str) -> Prepared:
    """``prepared`` with ``new`` in the place of ``old`` in all messages of its answer."""
    answer = prepared.answer
    return _changed(
        prepared,
        problem=None if answer.problem is None else answer.problem.replace(old, new),
        warnings=tuple(text.replace(old, new) for text in answer.warnings),
        notes=tuple(text.replace(old, new) for text in answer.notes),
    )


def _settings_text(robot_format: RobotFormat, settings: Sequence[RobotSetting]) -> str:
    """As in a job file: ``urdf.base = "floating", urdf.actuators = "position"``."""
    return ", ".join(f"{robot_format.name}.{one.key} = {json.dumps(one.value)}" for one in settings)


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
    algorithm and task.

    That is before the memory limit.

    :raises UnfitError: the algorithm is to be a class, and there is none.
    """
    robot_formats()  # features are found in the path as it is now
    if request.is_environment:
        import gymnasium  # noqa: F401
    has_class = is_algorithm_class(request.algo)
    if has_class:
        from orchestrator.worker.training import algorithms
    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    if has_class:
        try:
            algorithms.class_of(request.algo)
        except failures.AlgorithmError as error:
            raise UnfitError(str(error), "settings", "algo") from None
    if request.task is not None and not request.is_environment:
        with contextlib.suppress(ValueError):  # reported later
            find_task(request.task)


def _root_and_includes(xml: Path) -> tuple[str | None, tuple[str, ...]]:
    """Tag of the root element (None if the file has none) and the real paths of the MJCFs that it
    names.
    """
    found = list(elements(read_regular_file(xml, str(xml)), ("include", "model")))
    if not found or not _NAME.fullmatch(found[0].name):
        return None, ()
    names = [one.value for tag in found for one in files_read(tag)]
    return found[0].name, tuple(
        os.path.realpath(xml.parent / name.replace("\\", "/")) for name in names
    )
