"""Robots in files that are no MJCF: the worker's part of a feature writes them as MJCF, which is
then examined and trained like any.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest, RobotSetting
from orchestrator.core.robot_sources import RobotFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedRobot:
    """The robot as MJCF."""

    xml: Path
    added: Sequence[str] = ()
    """What was added to the file of the user, in sentences."""
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    outside: str | None = None
    """Which of its files lies outside of the allowed folders, if it is examined alone."""
    chosen: Sequence[RobotSetting] = ()
    """Settings that the request leaves out, and that were chosen by the robot, if it is examined
    alone."""
    if_diverging: Sequence[RobotSetting] = ()
    """Settings with which physics may be stable where it diverges with those of the request."""


def convert(robot: RobotFormat, request: ExaminationRequest, folder: Path) -> ConvertedRobot:
    """Write ``request.xml`` as MJCF.

    :param folder: an empty one, for the MJCF and all that belongs to it.
    :raises UnfitError: naming the file, what is wrong in it, and what to do.
    """
    made: ConvertedRobot = importlib.import_module(robot.worker).make_robot(request, folder)
    return made


def answer_about_source(
    answer: ExaminationAnswer, request: ExaminationRequest, made: ConvertedRobot
) -> ExaminationAnswer:
    """``answer`` about the user's file in the place of ``made.xml``, with what was added to it."""

    def with_users_file(text: str) -> str:
        return text.replace(str(made.xml), str(request.xml))

    warnings = [*made.warnings, *([] if made.outside is None else [made.outside])]
    warnings += [with_users_file(text) for text in answer.warnings]
    notes = [*made.notes, *(f"added: {text}" for text in made.added)]
    notes += [with_users_file(text) for text in answer.notes]
    return dataclasses.replace(
        answer,
        problem=None if answer.problem is None else with_users_file(answer.problem),
        warnings=tuple(warnings),
        notes=tuple(notes),
        outside=made.outside,
        chosen_settings=made.chosen,
        includes=(),
    )


def answer_with_choices(answer: ExaminationAnswer, robot: RobotFormat) -> ExaminationAnswer:
    """``answer`` with a note of the settings that were chosen."""
    chosen = answer.chosen_settings
    if not chosen:
        return answer
    reasons = "; ".join(one.reason for one in chosen)
    note = f"a job needs {settings_text(robot, chosen)}, which `init` writes; {reasons}"
    return dataclasses.replace(answer, notes=(note, *answer.notes))


def settings_text(robot: RobotFormat, settings: Sequence[RobotSetting]) -> str:
    """As in a job file: ``urdf.base = "floating", urdf.actuators = "position"``."""
    return ", ".join(f"{robot.name}.{one.key} = {json.dumps(one.value)}" for one in settings)
