"""What ``advise`` shows of a robot: changes by speed-up and deviation, and lines for the
job file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from orchestrator.core.text import count, joined, number_or_dash
from orchestrator.experiment.examination.robot_check import RobotCheck
from orchestrator.features.advice.physics_advice import (
    ContactPair,
    MedianEstimate,
    PhysicsAdvice,
    PhysicsChange,
)
from orchestrator.jobfile.job_file_text import comment, toml
from orchestrator.terminal import output
from orchestrator.terminal.tables import NONE, Column, number_column


def show(rows: Sequence[RobotCheck], given: Sequence[PhysicsAdvice | None]) -> None:
    """:param given: for each row; None without advice."""
    for row, advice in zip(rows, given, strict=True):
        if advice is not None:
            _show(row, advice)


def _show(row: RobotCheck, advice: PhysicsAdvice) -> None:
    where = f"{row.path} ({row.where})" if row.where else row.path
    title = Text.assemble("\n", (f"Advice on physics: {where}", "bold"))
    if advice.problem is not None:
        output.show(output.console(), title, Text(f"    {advice.problem}"))
        return
    faster = [change for change in advice.changes if change.is_faster]
    output.show_table(
        _columns(),
        faster,
        above=[title, *map(Text, _introduction(row, advice)), Text("")],
        below=list(map(Text, _below(advice, faster))),
    )


def _columns() -> list[Column[PhysicsChange]]:
    return [
        Column(
            "change",
            lambda change: change.name,
            style=lambda change: "green" if change.is_offered else "",
        ),
        number_column("speed-up", lambda change: _estimate_text(change.speedup, ".2f")),
        number_column("deviation %", lambda change: _estimate_text(change.deviation, ".2g", 100)),
        number_column("× original's", lambda change: _estimate_text(change.relative, ".2f")),
        Column(
            "remark",
            lambda change: change.problem or change.objection or change.remark or NONE,
            rank=1,
            is_folded=True,
        ),
    ]


def _estimate_text(estimate: MedianEstimate | None, form: str, factor: float = 1.0) -> str:
    if estimate is None:
        return NONE

    def text(value: float | None) -> str:
        return "∞" if value is None else number_or_dash(factor * value, form)

    return f"{text(estimate.median)} ({text(estimate.low)}–{text(estimate.high)})"


def _introduction(row: RobotCheck, advice: PhysicsAdvice) -> Iterator[str]:
    yield (
        f"Task {row.task}, random actions: {number_or_dash(advice.env_steps_per_s, ',.0f')} env_steps/s on one CPU, "
        f"without a policy. {count(advice.starts, 'motion')} of {advice.horizon_s:.2g} s, {advice.states:,} states."
    )
    yield (
        f"Deviation from the original at a quarter of its timestep, in % of the robot's size ({advice.size_m:.3g} m); "
        f"the original's own: {_estimate_text(advice.deviation, '.2g', 100)}."
    )
    if advice.played_steps:
        yield (
            "Played with what is no worse: random actions, and a policy that was trained for "
            f"{advice.trained_env_steps:,} env_steps; episodes of at most {count(advice.played_steps, 'control step')}."
        )
    yield from (f"{note[:1].upper()}{note[1:]}." for note in advice.notes)


def _below(advice: PhysicsAdvice, faster: Sequence[PhysicsChange]) -> Iterator[str]:
    if not faster:
        yield "No change is faster."
    if advice.unmeasured:
        yield (
            f"There was no time for {joined(advice.unmeasured)}, as on a busy machine: give a larger --time-limit or a "
            "smaller --time."
        )
    measured = [
        change for change in advice.changes if change.speedup is not None and change not in faster
    ]
    if measured:
        yield f"\nNot faster: {', '.join(f'{change.name} {_median(change)}' for change in measured)}."
    for change in advice.changes:
        if change.speedup is None:
            remark = f" ({change.remark})" if change.remark else ""
            yield f"Not measured: {change.name}{remark}: {change.problem or change.mjcf}."
    if advice.contact_pairs:
        yield f"Contacts that cost most: {'; '.join(map(_contacts, advice.contact_pairs))}."
    advised = [change for change in faster if change.is_advised]
    for change in advised:
        if change.mjcf:
            yield f"In the MJCF, for “{change.name}”: {change.mjcf}"
    lines = [line for change in advised if change.is_offered for line in job_file_lines(change)]
    if faster and not advised:
        yield "\nNo change is offered: what each of the faster ones would do is in its remark."
    if lines:
        yield "\nNothing is changed. To follow a piece of advice, add its lines to the job or to [defaults]:\n"
        if advice.own_xml is not None:
            yield "# the robot that the task brings, which `model` needs by its name"
            yield f"xml = {toml(advice.own_xml)}"
        yield from lines


def _median(change: PhysicsChange) -> str:
    return NONE if change.speedup is None else number_or_dash(change.speedup.median, ".2f")


def _contacts(pair: ContactPair) -> str:
    return (
        f"{'–'.join(pair.geoms)} ({pair.rows_share:.0%} of the rows, {pair.contacts:.2g} contacts a state, "
        f"touching in {pair.touching:.0%})"
    )


def job_file_lines(change: PhysicsChange) -> list[str]:
    """A comment, and lines of TOML for a table of ``[[jobs]]`` or for ``[defaults]``."""
    remark = f" ({change.remark})" if change.remark else ""
    figures = f"speed-up {_estimate_text(change.speedup, '.2f')}, deviation × {_estimate_text(change.relative, '.2f')}"
    return [
        comment(f"{change.name}{remark}: {figures}"),
        *(f"model.{toml(key)} = {toml(value)}" for key, value in change.edits.items()),
        *(f"task_options.{key} = {toml(value)}" for key, value in change.task_options.items()),
    ]
