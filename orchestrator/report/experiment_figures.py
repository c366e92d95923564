"""The figures of an experiment, drawn from its facts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.run_reader import LearningCurve
from orchestrator.analysis.statistics import estimate
from orchestrator.report import drawing
from orchestrator.report.drawing import COLOURS, DIM, FACE, INK, PHASES, SERIES
from orchestrator.report.experiment_facts import (
    ReportedAttempt,
    ReportedJob,
    ReportedRobot,
    attempt_outcome,
)
from orchestrator.report.number_format import are_numbers, one_line, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

TIME_RESOLUTION = 800
"""Changes of the number of busy CPUs that are closer than the time axis divided by this are drawn
as one."""
GRID_POINTS = 40
"""Points of a learning curve at which the interval over seeds is computed."""
OUTCOME_COLOURS = {
    "succeeded": COLOURS["green"].light,
    "running": COLOURS["blue"].light,
    "interrupted": COLOURS["yellow"].light,
    "failed": COLOURS["red"].light,
}
"""Outcome of an attempt → colour."""


def learning_curves(robots: Sequence[ReportedRobot], jobs: Mapping[str, ReportedJob]) -> Drawn:
    """One panel per robot; ``jobs``: by job_id."""
    drawn, panels = drawing.panels(len(robots), columns=4, height_in=1.05)
    for axes, robot in zip(panels, robots, strict=True):
        seeds = [job for job_id in robot["jobs"] if (job := jobs[job_id])["curve"]]
        _panel(axes, robot["robot"], {SERIES[0]: [job["curve"] for job in seeds]})
        for job in seeds:
            if marked := sorted(itertools.chain(*job["marks"].values())):
                _mark(axes, job["curve"], marked)
    return drawn


def curves_over_each_other(
    cases: Mapping[str, Sequence[Sequence[LearningCurve]]], names: Sequence[str]
) -> Drawn:
    """One panel per case; of each run directory in ``names`` the curves of the seeds, in a colour
    of its own.

    :param cases: name → for each run directory its curves; none where it does not have the case.
    """
    drawn, panels = drawing.panels(
        len(cases), columns=3, height_in=1.4, legend_in=0.17 * len(names) + 0.1
    )
    colours = SERIES[: len(names)]
    for axes, (case, runs) in zip(panels, cases.items(), strict=True):
        _panel(axes, case, dict(zip(colours, runs, strict=True)))
    drawing.colour_legend(drawn, colours, [one_line(name, 90) for name in names], columns=1)
    return drawn


def _panel(axes: Axes, title: str, runs: Mapping[str, Sequence[LearningCurve]]) -> None:
    """Of each colour thin lines for the seeds, and the mean of several with its interval; a dot
    where a seed has a single value.
    """
    for colour, seeds in runs.items():
        single = len(seeds) == 1
        for curve in seeds:
            steps, values = zip(*curve, strict=True)
            axes.plot(
                steps,
                values,
                color=colour,
                marker="o" if len(curve) == 1 else None,
                markersize=4,
                linewidth=1.4 if single else 0.6,
                alpha=1 if single else 0.5,
            )
    if any(len(seeds) > 1 for seeds in runs.values()):
        # The limits of the seeds stay: an interval of two or three can be very wide.
        axes.set_ylim(axes.get_ylim())
    for colour, seeds in runs.items():
        if len(seeds) > 1:
            _mean_curve(axes, seeds, colour)
    axes.set_title(one_line(title, 32), fontsize=7.5)
    axes.set_xlim(left=0)
    drawing.plain_ticks(axes, x=True, y=True, most=4)
    axes.set_xlabel("env_steps", fontsize=7, labelpad=1)


def _mark(axes: Axes, curve: LearningCurve, marks: Sequence[float]) -> None:
    """Triangles on a curve, at the env_steps ``marks``."""
    import numpy as np

    values = np.interp(marks, *np.array(curve).T)
    axes.plot(
        marks,
        values,
        linestyle="none",
        marker="^",
        markersize=4.5,
        color=INK,
        markeredgewidth=0,
        zorder=3,
    )


def _mean_curve(axes: Axes, seeds: Sequence[LearningCurve], colour: str) -> None:
    """Mean over seeds with its interval, over the range that all of them cover."""
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


def schedule(attempts: Sequence[ReportedAttempt], use: Mapping[str, float | None]) -> Drawn:
    """Attempts on their CPUs over time, and below how many CPUs were busy; ``use`` as in
    :func:`cpu_share`.
    """
    begin = min(attempt["started_at"] for attempt in attempts)
    span_s = max(attempt["until"] for attempt in attempts) - begin
    unit_s, unit = drawing.time_unit(span_s)
    bars: list[drawing.Bar] = []
    shares: list[float] = []
    for attempt in attempts:
        spans = attempt["cpu_spans"]
        ends = [*(span["since"] for span in spans[1:]), attempt["until"]]
        for span, end in zip(spans, ends, strict=True):
            bar = drawing.Bar(
                name=attempt["job_id"],
                begin_s=span["since"] - begin,
                end_s=end - begin,
                colour=OUTCOME_COLOURS[attempt_outcome(attempt)],
                cpus=span["cpus"],
                node=attempt["node"] or "",
            )
            bars.append(bar)
            shares.append(cpu_share(attempt, use))
    lanes = drawing.lanes(bars)
    upper_in = min(0.3, max(0.02, 4.5 / len(lanes))) * len(lanes)
    use_in = 0.9
    below = 0.42
    between = 0.42
    above = 0.3
    left = 0.55
    right = 0.1
    drawn = drawing.empty_figure(below + use_in + between + upper_in + above)
    width = drawing.WIDTH_IN - left - right
    upper = drawing.axes_at(drawn, left, below + use_in + between, width, upper_in)
    lower = drawing.axes_at(drawn, left, below, width, use_in)
    drawing.gantt(upper, lanes, span_s=span_s, unit_s=unit_s)
    upper.set_xticklabels([])
    moments, busy = _busy(bars, shares, span_s / TIME_RESOLUTION)
    times = [moment / unit_s for moment in moments]
    lower.step(times, busy, where="post", color=SERIES[0])
    lower.fill_between(times, busy, step="post", color=SERIES[0], alpha=0.2)
    given = drawing.cpus_given(bars)
    lower.axhline(given, color=DIM, linestyle="--", linewidth=0.9)
    lower.set_xlim(upper.get_xlim())
    lower.set_ylim(0, max([given, *busy]) * 1.1)
    lower.set_ylabel("CPUs busy")
    lower.set_xlabel(f"{unit} since the first job started")
    drawing.plain_ticks(lower, y=True, most=4)
    drawing.plain_ticks(lower, x=True, most=10)
    used = [
        name
        for name, colour in OUTCOME_COLOURS.items()
        if any(bar.colour == colour for bar in bars)
    ]
    drawing.colour_legend(drawn, [OUTCOME_COLOURS[name] for name in used], used, columns=4)
    return drawn


def _busy(
    bars: Sequence[drawing.Bar], shares: Sequence[float], shortest_s: float
) -> tuple[list[float], list[float]]:
    """When the number of busy CPUs changes, and to what; what lasts less than ``shortest_s`` is
    left out.
    """
    changes: list[tuple[float, float]] = []
    for bar, share in zip(bars, shares, strict=True):
        changes += [(bar.begin_s, share), (bar.end_s, -share)]
    times: list[float] = []
    busy: list[float] = []
    now = 0.0
    for moment, change in sorted(changes):
        now += change
        if times and moment - times[-1] < shortest_s:
            busy[-1] = max(0.0, now)
        else:
            times.append(moment)
            busy.append(max(0.0, now))
    return times, busy


def cpu_share(attempt: ReportedAttempt, use: Mapping[str, float | None]) -> float:
    """CPU seconds per second of an attempt, as recorded; else those of its job's iterations, in
    ``use``; else 0.
    """
    if attempt["cpu_s"] is not None and attempt["wall_s"]:
        return float(attempt["cpu_s"] / attempt["wall_s"])
    return use.get(attempt["job_id"]) or 0.0


def phases(robots: Sequence[ReportedRobot]) -> Drawn:
    """Shares of the time of iterations, one bar per robot."""
    left = 2.2
    right = 1.6
    bar_in = 0.2
    below = 0.4
    above = 0.62
    drawn = drawing.empty_figure(below + above + bar_in * len(robots))
    axes = drawing.axes_at(
        drawn, left, below, drawing.WIDTH_IN - left - right, bar_in * len(robots)
    )
    begin = [0.0] * len(robots)
    for name, phase in PHASES.items():
        shares = [robot["phases"][f"{name}_s"] / robot["timed_s"] * 100 for robot in robots]
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
        text = "" if delay is None else f"{percent(delay / robot['timed_s'])} waiting for a CPU"
        axes.text(101, place, text, va="center", fontsize=7, color=DIM)
    axes.set_yticks(range(len(robots)), [one_line(robot["robot"], 36) for robot in robots])
    axes.set_ylim(len(robots) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time of iterations")
    axes.grid(visible=False, axis="y")
    drawing.phase_legend(drawn)
    return drawn


SCATTERED = 12
"""With more numbers than these, a varied key is drawn at its values."""
LETTER_IN = 0.075
"""Width of a letter of a label of ticks, with its part of the gap to the next label."""
SHORTEST_LABEL = 4
"""Letters to which a text may be shortened; where these have no room, some values have no label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedKey:
    """The returns of a robot over the values of a key that its job varies."""

    robot: str
    key: str
    points: Sequence[tuple[Any, float]]
    """``(value, return)`` of each job."""
    robots: int = 1
    """How many robots the jobs are of."""

    def values(self) -> list[Any]:
        """Each value once: numbers in ascending order, others as they come."""
        found: list[Any] = []
        for value, _ in self.points:
            if value not in found:  # a value may be a list or a table, which has no hash
                found.append(value)
        if are_numbers(found):
            found.sort()
        return found

    @property
    def is_scattered(self) -> bool:
        """Whether each value has its own place on the axis: numbers, which are many, or about one
        for each robot.
        """
        if not are_numbers([value for value, _ in self.points]):
            return False
        values = len(self.values())
        return values > SCATTERED or values <= self.robots < 2 * values


def varied_keys(panels: Sequence[VariedKey], rating: str) -> Drawn:
    """One panel per robot and varied key.

    :param rating: the name of the return.
    """
    drawn, all_axes = drawing.panels(len(panels), columns=3, height_in=1.5)
    for axes, panel in zip(all_axes, panels, strict=True):
        drawing.plain_ticks(axes, y=True)
        axes.set_title(one_line(panel.robot, 36), fontsize=7.5)
        axes.set_xlabel(one_line(panel.key, 44))
        if panel.is_scattered:
            places, results = zip(*panel.points, strict=True)
            axes.scatter(places, results, s=14, color=SERIES[0], alpha=0.55, linewidths=0)
            axes.locator_params(axis="x", integer=all(isinstance(place, int) for place in places))
            continue
        values = panel.values()
        groups = [[result for other, result in panel.points if other == value] for value in values]
        for place, group in enumerate(groups):
            axes.scatter(
                [place] * len(group), group, s=14, color=SERIES[0], alpha=0.55, linewidths=0
            )
        axes.plot(
            range(len(values)),
            list(map(median, groups)),
            color=SERIES[1],
            marker="_",
            markersize=14,
        )
        _label_values(axes, values)
    all_axes[0].set_ylabel(rating, color=INK)
    return drawn


def _label_values(axes: Axes, values: Sequence[Any]) -> None:
    """Ticks at 0, 1, 2, … for as many of ``values`` as there is room for."""
    width_in = axes.get_window_extent().width / axes.figure.dpi
    letters = int(width_in / LETTER_IN)
    longest = min(14, max(SHORTEST_LABEL, letters // len(values)))
    texts = [_value_text(value, longest) for value in values]
    stride = math.ceil(len(texts) * max(map(len, texts)) / letters)
    labelled = range(0, len(texts), stride)
    axes.set_xticks(list(labelled), [texts[place] for place in labelled])
    axes.set_xlim(-0.5, len(texts) - 0.5)


def _value_text(value: Any, longest: int) -> str:
    """A text is shortened, a number rounded."""
    if isinstance(value, float):
        text = f"{value:g}"
        return text if len(text) <= longest else f"{value:.3g}"
    return str(value) if isinstance(value, int) else one_line(value, longest)
