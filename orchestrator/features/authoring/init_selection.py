"""``init``: a short job file of the robots that can be trained, with the reasons why the others
cannot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.paths import absolute
from orchestrator.core.robot_sources import format_of
from orchestrator.core.text import count, joined, plain, rough_duration
from orchestrator.examination.robot_check import RobotCheck
from orchestrator.examination.training_time import TrainingTime, estimate
from orchestrator.features.authoring.robot_entries import RobotEntry, entries
from orchestrator.jobfile.job_file_text import LeftOut, aligned_lines, comment
from orchestrator.jobfile.presets import PRESETS
from orchestrator.keys.names import is_showable, safe_name
from orchestrator.keys.toml_text import toml
from orchestrator.keys.value_types import MOST

PRESET = PRESETS["quick"]
TIMESTEPS = PRESET["total_timesteps"]
N_ENVS = PRESET["n_envs"]
N_STEPS = PRESET["ppo"]["n_steps"]
ITERATIONS = 5
"""A training has at least so many iterations, unless ``n_steps``, which is reduced for a short one,
would be below 8."""
USUAL_TIMEOUT_S = 7200.0
MOST_SHOWN = 5
MOST_LISTED = 200
"""Files left out that the job file lists."""
_UNITS = {"k": 10**3, "m": 10**6}


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotJobFile:
    """A job file to be written."""

    text: str
    robots: Sequence[RobotCheck]
    """Those that it trains."""
    left_out: Sequence[LeftOut]
    time: TrainingTime


def parse_timesteps(text: str) -> int:
    """``"200_000"``, ``"200000"``, ``"2e5"``, ``"200k"`` and ``"0.2M"`` → 200000.

    :raises UsageError: for anything else.
    """
    plain_text = text.strip().lower()
    factor = _UNITS.get(plain_text[-1:], 1)
    expected = f"a whole number from 1 to {MOST:_}, such as 200_000, 2e5 or 200k"
    try:
        number = float(plain_text[:-1] if factor > 1 else plain_text) * factor
        whole = round(number)
    except (ValueError, OverflowError):  # no number, or no finite one
        raise UsageError(f"--timesteps {text}: expected {expected}") from None
    if abs(number - whole) > 1e-6 or not 1 <= whole <= MOST:
        raise UsageError(f"--timesteps {text}: expected {expected}")
    return whole


def draft(
    rows: Sequence[RobotCheck],
    paths: Sequence[Path],
    target: Path,
    *,
    timesteps: int | None,
    jobs_at_once: int,
    settings: Mapping[str, Any] | None = None,
) -> RobotJobFile:
    """The job file ``target`` for the robots that were checked.

    :param rows: the result of ``check`` for ``paths``.
    :param timesteps: env_steps of each robot; None: those of the preset.
    :param settings: further ones of all jobs, by dotted key.
    :param jobs_at_once: of the machine.
    :raises UsageError: no robot can be trained; the message says why.
    """
    named = {str(location_of(str(path))) for path in paths if not path.is_dir()}
    trained, left_out = _sorted_out(rows, named)
    if not trained:
        raise UsageError(_nothing_to_train(rows, left_out, paths))
    time = estimate(trained, timesteps or TIMESTEPS, jobs_at_once)
    base = absolute(target).parent.resolve()
    by_path = {location_of(row.path): row for row in trained}
    folders = [location_of(str(path)) for path in paths if path.is_dir()]
    kinds = {
        path: f"{row.task} {row.outside is None} {row.chosen_settings}"
        for path, row in by_path.items()
    }
    lines = _head(paths, target, timesteps, time, settings or {})
    for table in entries(kinds, base, folders):
        lines += _table(table, [by_path[path] for path in table.paths], base)
    lines += _remarks(left_out, base)
    return RobotJobFile(text="\n".join(lines) + "\n", robots=trained, left_out=left_out, time=time)


def location_of(path: str) -> Path:
    """The absolute path of a file or folder; links stay, except before ``..``."""
    whole = absolute(Path(path))
    if ".." not in whole.parts:
        return whole
    return (
        Path(os.path.realpath(whole))
        if whole.name == ".."
        else Path(os.path.realpath(whole.parent), whole.name)
    )


def _sorted_out(
    rows: Sequence[RobotCheck], named: set[str]
) -> tuple[list[RobotCheck], list[LeftOut]]:
    """The robots to be trained, and all other files with the reason."""
    faults = {row.path: _fault(row) for row in rows}
    trained = list[RobotCheck]()
    left_out = list[LeftOut]()
    # Folders on the command line may overlap: the first row of a file counts.
    distinct = {location_of(row.path): row for row in reversed(rows)}
    for row in reversed(distinct.values()):
        reason = faults[row.path]
        whole = row.included_by
        is_named = str(location_of(row.path)) in named
        if reason is None and whole is not None and faults[whole] is None and not is_named:
            reason = f"a part of {whole}, which is trained"
        if reason is None:
            trained.append(row)
        else:
            left_out.append(LeftOut(what=row.path, reason=reason))
    return trained, left_out


def _fault(row: RobotCheck) -> str | None:
    """Why this file cannot be trained; None when it can."""
    if row.verdict in ("error", "fragment"):
        return row.messages[0]
    if not is_showable(str(location_of(row.path))):
        return "its path holds characters that cannot be printed, so no job file can name it; rename the file or folder"
    if row.task is None:
        return row.task_reason or "no built-in task suits this robot"
    return None


def _nothing_to_train(
    rows: Sequence[RobotCheck], left_out: Sequence[LeftOut], paths: Sequence[Path]
) -> str:
    where = joined(paths)
    if all(row.verdict == "fragment" for row in rows):
        what = (
            f"{where}: no robot, only parts of robots; expected an MJCF with joints and actuators"
        )
    else:
        what = f"{where}: no robot that can be trained; nothing was written"
    lines = [what, *(f"    {entry.what}: {entry.reason}" for entry in left_out[:MOST_SHOWN])]
    if len(left_out) > MOST_SHOWN:
        lines.append(f"    and {len(left_out) - MOST_SHOWN:,} more; `check` shows all")
    return "\n".join(lines)


def _head(
    paths: Sequence[Path],
    target: Path,
    timesteps: int | None,
    time: TrainingTime,
    settings: Mapping[str, Any],
) -> list[str]:
    name = _experiment_name(paths, target)
    lines = [
        comment(
            "Written by `orchestrator init`. docs/presets.md describes presets; docs/job-file.md lists all keys."
        ),
        comment(
            f"Training takes about {rough_duration(time.seconds)} here, {time.jobs_at_once} at a time (estimated)."
        ),
        *aligned_lines([(f"name = {toml(name)}", f"the results go to runs/{safe_name(name)}")]),
        "",
        "[defaults]",
        *aligned_lines(_defaults(timesteps)),
        *(f"{key} = {toml(value)}" for key, value in settings.items()),
    ]
    n_steps = min(N_STEPS, max(8, (timesteps or TIMESTEPS) // (ITERATIONS * N_ENVS) // 8 * 8))
    if n_steps < N_STEPS:
        remark = f"× {N_ENVS} environments = {n_steps * N_ENVS:_} env_steps between two updates"
        lines += ["", "[defaults.ppo]", *aligned_lines([(f"n_steps = {n_steps}", remark)])]
    if time.longest_s * 3 > USUAL_TIMEOUT_S:
        hours = f'timeout = "{round(time.longest_s * 3 / 3600) + 1}h"'
        lines += [
            "",
            "[defaults.resources]",
            *aligned_lines([(hours, "a job that takes longer is ended")]),
        ]
    return lines


def _defaults(timesteps: int | None) -> list[tuple[str, str]]:
    """Lines of the table, each with its remark."""
    advice = f'for quick results, with {toml(TIMESTEPS)} env_steps; "standard" and "thorough" train for longer'
    defaults = [('preset = "quick"', advice)]
    if timesteps is not None:
        defaults.append(
            (
                f"total_timesteps = {toml(timesteps)}",
                "env_steps of each robot, in place of the preset's",
            )
        )
    defaults.append(("seeds = [0]", "[0, 1, 2] would train every robot three times"))
    defaults.append(
        (
            "video = false",
            "true makes a video of every policy, which takes about 15 s of CPU time each",
        )
    )
    return defaults


def _experiment_name(paths: Sequence[Path], target: Path) -> str:
    """The name of the job file where one was chosen, otherwise that of the robots' folder or
    file.
    """
    locations = [location_of(str(path)) for path in paths]
    common = Path(os.path.commonpath(locations))
    candidates = (
        target.stem if target.name != "jobs.toml" else "",
        common.stem if common.is_file() else common.name,
    )
    return next((name for name in candidates if name.strip() and is_showable(name)), "robots")


def _table(entry: RobotEntry, robots: Sequence[RobotCheck], base: Path) -> list[str]:
    xml = f"xml = {toml(entry.xml)}"
    task = f"task = {toml(str(robots[0].task))}"
    acts = f"one action every {_periods_text(robots)} s"
    if entry.name is None:
        lines = [(xml, count(len(robots), "robot")), (task, acts)]
    else:
        lines = [
            (f"name = {toml(entry.name)}", ""),
            (xml, ""),
            (task, f"{acts}; {robots[0].task_reason}"),
        ]
    if robots[0].outside is not None:
        lines.append(("allow_outside = true", "uses files elsewhere, which are copied"))
    return ["", "[[jobs]]", *aligned_lines(lines), *_chosen_lines(robots[0], base)]


def _chosen_lines(robot: RobotCheck, base: Path) -> list[str]:
    """The table of the robot's format, with what was chosen for it and why.

    :param base: folder of the job file.
    """
    robot_format = format_of(robot.path)
    if not robot.chosen_settings or robot_format is None:
        return []
    guesses = [one for one in robot.chosen_settings if not one.is_folders]
    lines = aligned_lines([(f"{one.key} = {toml(one.value)}", one.reason) for one in guesses])
    for one in robot.chosen_settings:
        if one.is_folders:
            folders = [os.path.relpath(location_of(folder), base) for folder in one.value]
            lines += aligned_lines([(f"{one.key} = {toml(folders)}", one.reason)])
    return [f"[jobs.{robot_format.name}]", *lines]


def _periods_text(robots: Sequence[RobotCheck]) -> str:
    """``0.02``, or ``0.02 to 0.04`` where the control periods differ."""
    periods = [float(f"{row.figures['control_period_s']:.4g}") for row in robots]
    shortest = min(periods)
    longest = max(periods)
    return f"{shortest:g}" if shortest == longest else f"{shortest:g} to {longest:g}"


def _remarks(left_out: Sequence[LeftOut], base: Path) -> list[str]:
    if not left_out:
        return []
    lines = [
        comment(f"{_below(entry.what, base)}: {entry.reason}") for entry in left_out[:MOST_LISTED]
    ]
    more = len(left_out) - len(lines)
    last = [comment(f"and {more:,} more; `orchestrator check` shows all")] if more else []
    return ["", comment("Not trained:"), *lines, *last]


def _below(path: str, base: Path) -> str:
    return os.path.relpath(location_of(path), base)


def facts(made: RobotJobFile, target: Path) -> Mapping[str, object]:
    """What was written, as JSON types."""
    robots = [
        {"path": row.path, "task": row.task, "control_period_s": row.figures["control_period_s"]}
        for row in made.robots
    ]
    return {
        "job_file": str(target),
        "robots": robots,
        "left_out": [
            {"path": entry.what, "reason": plain(entry.reason)} for entry in made.left_out
        ],
        "estimate_s": round(made.time.seconds, 1),
        "jobs_at_once": made.time.jobs_at_once,
    }
