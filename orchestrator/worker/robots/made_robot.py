"""Robots that a function of the user makes: ``make(params, folder) -> path``."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.worker.robots.compiling import memory_limit
from orchestrator.worker.robots.env_check import UnfitError
from orchestrator.worker.runtime import failures, user_env


def make(request: ExaminationRequest, folder: Path) -> Path:
    """Call ``request.robot_maker``; returns the path of the MJCF.

    :param folder: an empty one, for the files of the robot.
    :raises UnfitError: there is no such function, it raises, or it returns something else.
    """
    assert request.robot_maker is not None
    if request.search_path and request.search_path not in sys.path:
        sys.path.insert(0, request.search_path)
    try:
        function = user_env.load(request.robot_maker)
    except user_env.EntryPointError as error:
        raise UnfitError(f"{request.robot_maker}: {error}", "settings") from None
    except (Exception, SystemExit) as error:
        text = f"importing its module raises {failures.describe(error)}"
        raise UnfitError(f"{request.robot_maker}: {text}", "settings") from None
    own = os.getpid()
    try:
        with memory_limit(request.memory_mib):
            made = function(dict(request.params), folder)
    except MemoryError:
        limit = f"the {request.memory_mib:,} MiB available" if request.memory_mib else "there is"
        raise UnfitError(f"{request.robot}: takes more memory than {limit}") from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{request.robot}: {failures.describe(error)}") from None
    finally:
        if os.getpid() != own:  # a child that it has forked: one process answers
            os._exit(1)
    if not isinstance(made, str | os.PathLike):
        kind = "None" if made is None else f"a {type(made).__name__}"
        raise UnfitError(
            f"{request.robot}: returns {kind}, expected the path of the MJCF that it has written"
        )
    if not (path := folder / os.fsdecode(made)).is_file():
        named = str(path).removeprefix(f"{folder}{os.sep}")
        raise UnfitError(f"{request.robot}: returns {named!r}, and there is no such file")
    return path


def answer_without_folder(
    answer: ExaminationAnswer, request: ExaminationRequest, folder: str
) -> ExaminationAnswer:
    """``answer`` without ``folder``, which the user does not know; its problem begins with the name
    of the robot.
    """

    def without_folder(text: str) -> str:
        return text.replace(f"{folder}{os.sep}", "").replace(folder, "its folder")

    problem = None if answer.problem is None else without_folder(answer.problem)
    if problem is not None and not problem.startswith(str(request.robot_maker)):
        problem = f"{request.robot}: {problem}"
    warnings = tuple(map(without_folder, answer.warnings))
    notes = tuple(map(without_folder, answer.notes))
    return dataclasses.replace(answer, problem=problem, warnings=warnings, notes=notes)
