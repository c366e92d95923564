"""From a request to an examined robot: make or convert, copy, edit, compile, check, make the simulation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from orchestrator.worker.robots.bundle import Bundle, collect
from orchestrator.worker.robots.compiling import compile_copy, guard_compiler, memory_limit
from orchestrator.worker.robots.converted_robot import ConvertedRobot
from orchestrator.worker.robots.env_check import check_environment
from orchestrator.worker.robots.model_edits import check_written, edit_robot
from orchestrator.worker.robots.model_examination import examine_model
from orchestrator.worker.robots.unfit import UnfitError, WrongRootError
from orchestrator.worker.runtime import failures, user_env
from orchestrator.worker.tasks import find_task, gymnasium_tasks

GYMNASIUM = "gymnasium:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a request names, as far as it could be made."""

    answer: ExaminationAnswer
    make_environment: Callable[[], Any] | None = None
    """Makes the simulation of the task, or returns the spaces of another environment's observations
    and actions; None where something is wrong."""

    def with_answer(self, **fields: Any) -> Prepared:
        answer = dataclasses.replace(self.answer, **fields)
        return dataclasses.replace(self, answer=answer)

    def with_texts(self, old: str, new: str) -> Prepared:
        """Replace ``old`` by ``new`` in all messages of the answer."""
        answer = self.answer
        return self.with_answer(
            problem=None if answer.problem is None else answer.problem.replace(old, new),
            warnings=tuple(text.replace(old, new) for text in answer.warnings),
            notes=tuple(text.replace(old, new) for text in answer.notes),
        )


def refusal(problem: str, **fields: Any) -> ExaminationAnswer:
    return ExaminationAnswer(problem=" ".join(problem.split()), **fields)


def unfit(error: UnfitError) -> ExaminationAnswer:
    return refusal(str(error), cause=error.cause, key=error.key, process_exits=error.process_exits)


def prepare(request: ExaminationRequest, cleanup: contextlib.ExitStack) -> Prepared:
    """Examine what ``request`` names.

    :param cleanup: removes afterwards what was made for it.
    :raises UnfitError: it cannot be trained.
    """
    _import_before_users(request)
    if request.robot_maker is not None:
        return _prepare_made(request, cleanup)
    if request.xml is not None:
        xml = Path(request.xml)
    elif request.is_environment:
        spaces, warnings = check_environment(request, None)
        answer = ExaminationAnswer(warnings=tuple(warnings))
        return Prepared(answer=answer, make_environment=lambda: spaces)
    elif request.task is not None and request.task.startswith(GYMNASIUM):
        try:
            xml = gymnasium_tasks.default_xml(request.task)
        except ValueError as error:
            raise UnfitError(str(error), "settings") from None
    else:
        raise UnfitError("expected a robot (xml) and a task, or an env or entry_point")
    if how := how_made(xml.name):
        raise UnfitError(f"{xml}: {how}")
    converter = converter_of(xml.name, request.robot_settings)
    if converter is None:
        return _prepare_mjcf(request, xml, cleanup)
    if converter.suffix != MJCF_SUFFIX or not request.alone:
        return _prepare_converted(converter, request, cleanup)
    # It may be a part of a robot; an MJCF without actuators is completed.
    plain = _prepare_mjcf(dataclasses.replace(request, robot_settings={}), xml, cleanup)
    if plain.answer.fragment is not None or not plain.answer.figures:
        return plain
    completed = _prepare_converted(converter, request, cleanup)
    return completed.with_answer(includes=plain.answer.includes, outside=plain.answer.outside)


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


def _prepare_made(request: ExaminationRequest, cleanup: contextlib.ExitStack) -> Prepared:
    """Call the user's function that makes a robot, ``make(params, folder) -> path``, and examine
    that.
    """
    maker = str(request.robot_maker)
    folder = Path(cleanup.enter_context(TemporaryFolder()))
    try:
        function = user_env.load(maker)
    except user_env.EntryPointError as error:
        raise UnfitError(f"{maker}: {error}", "settings") from None
    except (Exception, SystemExit) as error:
        text = f"importing its module raises {failures.describe(error)}"
        raise UnfitError(f"{maker}: {text}", "settings") from None
    try:
        with memory_limit(request.memory_mib):
            made = function(dict(request.params), folder)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{request.robot}: {failures.describe(error)}") from None
    path = folder / made if isinstance(made, str | os.PathLike) else folder
    if not path.is_file():
        returned = str(made).removeprefix(f"{folder}{os.sep}")
        raise UnfitError(
            f"{request.robot}: returns {returned:.80}, expected the path of the MJCF that it has written"
        )
    as_file = dataclasses.replace(request, xml=str(path), robot_maker=None)
    prepared = _prepared_or_unfit(as_file, cleanup).with_texts(f"{folder}{os.sep}", "")
    problem = prepared.answer.problem
    return prepared.with_answer(problem=problem and f"{request.robot}: {problem}")


def _prepared_or_unfit(request: ExaminationRequest, cleanup: contextlib.ExitStack) -> Prepared:
    try:
        return prepare(request, cleanup)
    except UnfitError as error:
        return Prepared(answer=unfit(error))


def _prepare_converted(
    robot_format: RobotFormat, request: ExaminationRequest, cleanup: contextlib.ExitStack
) -> Prepared:
    """Write a robot in a file of another format as MJCF, and examine that. Note the settings that
    were chosen for it.
    """
    prepared = _convert(robot_format, request, cleanup)
    chosen = prepared.answer.chosen_settings
    if not chosen:
        return prepared
    reasons = "; ".join(setting.reason for setting in chosen)
    needed = _settings_text(robot_format, chosen)
    note = f"a job needs {needed}, which `init` writes; {reasons}"
    return prepared.with_answer(notes=(note, *prepared.answer.notes))


def _convert(
    robot_format: RobotFormat, request: ExaminationRequest, cleanup: contextlib.ExitStack
) -> Prepared:
    """The robot as MJCF. Where its physics diverges, other settings are chosen if it is examined
    alone, and otherwise recommended.
    """
    worker = importlib.import_module(robot_format.worker)
    folder = Path(cleanup.enter_context(TemporaryFolder()))
    made: ConvertedRobot = worker.make_robot(request, folder)
    as_mjcf = dataclasses.replace(request, xml=str(made.xml), robot_settings={})
    prepared = _prepared_or_unfit(as_mjcf, cleanup).with_texts(str(made.xml), str(request.xml))
    answer = prepared.answer
    problem = answer.problem
    others = {setting.key: setting.value for setting in made.if_diverging}
    if answer.diverges and others:
        if request.alone and not others.keys() & request.robot_settings.keys():
            settings = {**request.robot_settings, **others}
            other = _convert(
                robot_format, dataclasses.replace(request, robot_settings=settings), cleanup
            )
            is_better = problem is not None or not other.answer.diverges
            if other.answer.problem is None and is_better:
                chosen = (*other.answer.chosen_settings, *made.if_diverging)
                return other.with_answer(chosen_settings=chosen)
        elif problem is not None:
            problem += f"; try {_settings_text(robot_format, made.if_diverging)}"
    outside = () if made.outside is None else (made.outside,)
    return prepared.with_answer(
        problem=problem,
        warnings=(*made.warnings, *outside, *answer.warnings),
        notes=(*made.notes, *(f"added: {text}" for text in made.added), *answer.notes),
        outside=made.outside,
        chosen_settings=made.chosen,
        includes=(),
    )


def _settings_text(robot_format: RobotFormat, settings: Sequence[RobotSetting]) -> str:
    """As in a job file: ``urdf.base = "floating", urdf.actuators = "position"``."""
    return ", ".join(
        f"{robot_format.name}.{setting.key} = {json.dumps(setting.value)}" for setting in settings
    )


def _prepare_mjcf(
    request: ExaminationRequest, xml: Path, cleanup: contextlib.ExitStack
) -> Prepared:
    """Examine an MJCF, which may be a part of a robot if it is examined alone."""
    try:
        source = collect(xml, request.memory_mib)
    except WrongRootError as error:
        if not request.alone:
            raise
        if error.root == "mujocoinclude":
            part = "a part for other files to include (<mujocoinclude>), not a robot"
            return Prepared(answer=ExaminationAnswer(fragment=part))
        fragment = f"not an MJCF: the root element is <{error.root}>"
        return Prepared(answer=dataclasses.replace(unfit(error), fragment=fragment))
    if not request.alone:
        return _prepare_bundle(request, source, cleanup)
    try:
        prepared = _prepare_bundle(request, source, cleanup)
    except UnfitError as error:  # its includes are reported nevertheless
        prepared = Prepared(answer=unfit(error))
    return prepared.with_answer(includes=source.includes)


def _prepare_bundle(
    request: ExaminationRequest, source: Bundle, cleanup: contextlib.ExitStack
) -> Prepared:
    """Copy, edit, compile and check an MJCF."""
    xml = source.xml
    warnings: list[str] = []
    outside = None if request.allow_outside else source.outside(request.job_folder)
    if outside is not None:
        if not request.alone:
            raise UnfitError(outside)
        warnings.append(outside)
    bundle = source
    edited = None
    try:
        with guard_compiler(xml, request.memory_mib):
            if request.model_edits:
                bundle, edited = edit_robot(source, request.model_edits)
            copy = bundle.write(Path(request.stage_to or cleanup.enter_context(TemporaryFolder())))
            model, said = compile_copy(copy, bundle)
            if edited is not None:
                check_written(edited, model)
            if request.measured_by is not None:
                measured = importlib.import_module(request.measured_by).measured_model(model)
                return Prepared(answer=ExaminationAnswer(measured=measured))
            answer = ExaminationAnswer(
                xml=bundle.main,
                hash=bundle.hash,
                source_hash=source.hash,
                outside=outside,
                warnings=(*warnings, *said),
            )
            answer = examine_model(model, answer, request, copy)
    except EditError as error:
        raise UnfitError(f"{xml}: {error}") from None
    if answer.problem is not None:
        robot_hash = answer.hash if request.alone else None
        failed = Prepared(answer=answer)
        return failed.with_answer(problem=f"{xml}: {answer.problem}", xml=None, hash=robot_hash)
    if request.is_environment:
        spaces, found = check_environment(request, copy)
        answer = dataclasses.replace(answer, warnings=(*answer.warnings, *found))
        return Prepared(answer=answer, make_environment=lambda: spaces)
    if answer.task is None:
        return Prepared(answer=answer)
    make_simulation = functools.partial(
        observed_simulation,
        copy,
        answer.task,
        request.task_options,
        request.randomize,
        asymmetric=request.asymmetric,
    )
    return Prepared(answer=answer, make_environment=make_simulation)
