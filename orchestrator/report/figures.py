"""The figures of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.analysis.run_reader import LearningCurve
from orchestrator.analysis.statistics import estimate
from orchestrator.report import drawing
from orchestrator.report.drawing import DIM, FACE, PHASES, SERIES
from orchestrator.report.experiment import ReportedAttempt, ReportedJob, ReportedRobot
from orchestrator.report.number_format import one_line, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

GRID_POINTS = 40
"""Points of a learning curve at which the interval over seeds is computed."""
OUTCOME_COLOURS = {
    "succeeded": drawing.GREEN,
    "running": drawing.BLUE,
    "interrupted": drawing.YELLOW,
    "failed": drawing.RED,
}


def learning_curves(robots: Sequence[ReportedRobot], jobs: Mapping[str, ReportedJob]) -> Drawn:
    """Draw one panel per robot. :param jobs: by job id."""
    drawn, panels = drawing.panels(len(robots), columns=4, height_in=1.05)
    for axes, robot in zip(panels, robots, strict=True):
        curves = [jobs[job_id]["curve"] for job_id in robot["jobs"]]
        draw_curves(axes, robot["robot"], {SERIES[0]: [curve for curve in curves if curve]})
    return drawn


def draw_curves(axes: Axes, title: str, runs: Mapping[str, Sequence[LearningCurve]]) -> None:
    """Draw thin lines for the seeds of each colour, and the mean of several with its interval."""
    for colour, seeds in runs.items():
        single = len(seeds) == 1
        for curve in seeds:
            axes.plot(
                *zip(*curve, strict=True),
                color=colour,
                marker="o" if len(curve) == 1 else None,
                markersize=4,
                linewidth=1.4 if single else 0.6,
                alpha=1 if single else 0.5,
            )
    axes.set_ylim(axes.get_ylim())  # an interval of two or three seeds can be very wide
    for colour, seeds in runs.items():
        if len(seeds) > 1:
            _mean_curve(axes, seeds, colour)
    axes.set_title(one_line(title, 32), fontsize=7.5)
    axes.set_xlim(left=0)
    drawing.plain_ticks(axes, x=True, y=True, most=4)
    axes.set_xlabel("env_steps", fontsize=7, labelpad=1)


def _mean_curve(axes: Axes, seeds: Sequence[LearningCurve], colour: str) -> None:
    """Draw the mean over seeds with its interval, over the range that all of them cover."""
    import numpy as np

    begin = max(curve[0][0] for curve in seeds)
    end = min(curve[-1][0] for curve in seeds)
    if begin >= end:
        return
    steps = np.linspace(begin, end, GRID_POINTS)
    values = np.array([np.interp(steps, *np.array(curve).T) for curve in seeds])
    estimates = [(one.value, one.low, one.high) for one in map(estimate, values.T.tolist())]
    middle, low, high = np.array(estimates, dtype=float).T
    axes.plot(steps, middle, color=colour, linewidth=1.6)
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)


def schedule(attempts: Sequence[ReportedAttempt]) -> Drawn:
    """Draw attempts on their CPUs over time."""
    begin = min(attempt["started_at"] for attempt in attempts)
    span_s = max(attempt["until"] for attempt in attempts) - begin
    unit_s, unit = drawing.time_unit(span_s)
    bars: list[drawing.Bar] = []
    for attempt in attempts:
        spans = attempt["cpu_spans"]
        ends = [*(span["since"] for span in spans[1:]), attempt["until"]]
        for span, end in zip(spans, ends, strict=True):
            bar = drawing.Bar(
                name=attempt["job_id"],
                begin_s=span["since"] - begin,
                end_s=end - begin,
                colour=OUTCOME_COLOURS[attempt["outcome"]],
                cpus=span["cpus"],
                node=attempt["node"] or "",
            )
            bars.append(bar)
    lanes = drawing.lanes(bars)
    drawn = drawing.empty_figure(0.8 + min(0.3 * len(lanes), 4.5), arranged=True)
    axes = drawn.add_subplot()
    axes.grid(visible=True)
    drawing.gantt(axes, lanes, span_s=span_s, unit_s=unit_s)
    drawing.plain_ticks(axes, x=True, most=10)
    axes.set_xlabel(f"{unit} since the first job started")
    outcomes = {attempt["outcome"] for attempt in attempts}
    used = {name: colour for name, colour in OUTCOME_COLOURS.items() if name in outcomes}
    drawing.colour_legend(drawn, list(used.values()), list(used), columns=4)
    return drawn


def phases(robots: Sequence[ReportedRobot]) -> Drawn:
    """Draw shares of the time of iterations, one bar per robot."""
    drawn = drawing.empty_figure(1.02 + 0.2 * len(robots), arranged=True)
    axes = drawn.add_subplot()
    begin = [0.0] * len(robots)
    for name, phase in PHASES.items():
        seconds = [robot["phases"][f"{name}_s"] or 0.0 for robot in robots]
        shares = [
            100 * part / robot["timed_s"] for part, robot in zip(seconds, robots, strict=True)
        ]
        axes.barh(
            range(len(robots)),
            shares,
            left=begin,
            height=0.76,
            color=phase.colour,
            edgecolor=FACE,
            linewidth=0.4,
        )
        begin = [before + share for before, share in zip(begin, shares, strict=True)]
    for place, robot in enumerate(robots):
        delay = robot["run_delay_s"]
        if delay is not None:
            text = f"{percent(delay / robot['timed_s'])} waiting for a CPU"
            axes.text(101, place, text, va="center", fontsize=7, color=DIM)
    axes.set_yticks(range(len(robots)), [one_line(robot["robot"], 36) for robot in robots])
    axes.set_ylim(len(robots) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time of iterations")
    drawing.phase_legend(drawn)
    return drawn
