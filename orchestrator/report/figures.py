"""The figures of an experiment."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.analysis.run_reader import LearningCurve
from orchestrator.analysis.statistics import estimate
from orchestrator.report import drawing
from orchestrator.report.drawing import COLOURS, DIM, FACE, PHASES, SERIES
from orchestrator.report.experiment import ReportedAttempt, ReportedJob, ReportedRobot
from orchestrator.report.number_format import one_line, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

GRID_POINTS = 40
"""Points of a learning curve at which the interval over seeds is computed."""
OUTCOME_COLOURS = {
    "succeeded": COLOURS["green"].light,
    "running": COLOURS["blue"].light,
    "interrupted": COLOURS["yellow"].light,
    "failed": COLOURS["red"].light,
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


def schedule(attempts: Sequence[ReportedAttempt], shares: Sequence[float]) -> Drawn:
    """Draw attempts on their CPUs over time, and below how many CPUs were busy.

    :param shares: the CPUs that each attempt kept busy.
    """
    begin = min(attempt["started_at"] for attempt in attempts)
    span_s = max(attempt["until"] for attempt in attempts) - begin
    unit_s, unit = drawing.time_unit(span_s)
    bars: list[drawing.Bar] = []
    changes: list[tuple[float, float]] = []
    for attempt, share in zip(attempts, shares, strict=True):
        changes += [(attempt["started_at"] - begin, share), (attempt["until"] - begin, -share)]
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
    upper_in = min(0.3, max(0.02, 4.5 / len(lanes))) * len(lanes)
    use_in = 0.9
    below = 0.42
    left = 0.55
    width = drawing.WIDTH_IN - left - 0.1
    drawn = drawing.empty_figure(below + use_in + below + upper_in + 0.3)
    upper = drawing.axes_at(drawn, left, below + use_in + below, width, upper_in)
    lower = drawing.axes_at(drawn, left, below, width, use_in)
    drawing.gantt(upper, lanes, span_s=span_s, unit_s=unit_s)
    upper.set_xticklabels([])
    changes.sort()
    times = [moment / unit_s for moment, _ in changes]
    busy = list(itertools.accumulate(change for _, change in changes))
    lower.step(times, busy, where="post", color=SERIES[0])
    lower.fill_between(times, busy, step="post", color=SERIES[0], alpha=0.2)
    lower.axhline(len(lanes), color=DIM, linestyle="--", linewidth=0.9)
    lower.set_xlim(upper.get_xlim())
    lower.set_ylim(0, max(len(lanes), *busy) * 1.1)
    lower.set_ylabel("CPUs busy")
    lower.set_xlabel(f"{unit} since the first job started")
    drawing.plain_ticks(lower, y=True, most=4)
    drawing.plain_ticks(lower, x=True, most=10)
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
