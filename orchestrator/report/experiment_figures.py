"""The figures of an experiment, drawn from its facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.report import drawing
from orchestrator.report.drawing import COLOURS, DIM, FACE, INK, PHASES, SERIES
from orchestrator.report.experiment_data import returns
from orchestrator.report.number_format import percent, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

Facts: TypeAlias = Mapping[str, Any]

HAND_OVER = 800
"""A CPU that is free for less than this part of the time axis would be drawn as a spike of a pixel, and is not."""
GRID_POINTS = 40
"""At so many points of a learning curve the interval over seeds is found."""
ENDINGS = {
    "ended well": COLOURS["green"][0],
    "at work": COLOURS["blue"][0],
    "interrupted": COLOURS["yellow"][0],
    "failed": COLOURS["red"][0],
}


def ending(attempt: Facts) -> str:
    """Which of :data:`ENDINGS` an attempt is."""
    if attempt["ended_at"] is None:
        return "at work" if attempt["at_work"] else "interrupted"
    if attempt["cause"] is None:
        return "ended well"
    return "interrupted" if attempt["cause"] in ("interrupted", "cancelled", "supervisor-died") else "failed"


def learning_curves(
    robots: Sequence[Facts], curves: Mapping[str, Sequence[tuple[float, float]]], width: float
) -> Drawn:
    """One panel a robot.

    :param curves: job_id → ``(env_steps, ep_rew_mean)``.
    """
    drawn, found = drawing.panels(width, len(robots), least_in=1.9, height_in=1.05)
    for axes, robot in zip(found, robots, strict=True):
        seeds = [curves[job_id] for job_id in robot["jobs"] if curves[job_id]]
        single = len(seeds) == 1
        for curve in seeds:
            steps, values = zip(*curve, strict=True)
            axes.plot(steps, values, color=SERIES[0], linewidth=1.4 if single else 0.6, alpha=1 if single else 0.5)
        if not single:
            axes.set_ylim(axes.get_ylim())  # of the seeds: an interval of two or three can be very wide
            _middle(axes, seeds)
        axes.set_title(plain(robot["robot"], 30 if drawing.is_narrow(width) else 34), fontsize=7.5)
        axes.set_xlim(left=0)
        drawing.plain_ticks(axes, x=True, y=True, most=4)
        axes.set_xlabel("env_steps", fontsize=7, labelpad=1)
    return drawn


def _middle(axes: Axes, seeds: Sequence[Sequence[tuple[float, float]]]) -> None:
    """Median over seeds with its interval, over the range that all of them cover."""
    import numpy as np

    begin, end = max(curve[0][0] for curve in seeds), min(curve[-1][0] for curve in seeds)
    if begin >= end:
        return
    steps = np.linspace(begin, end, GRID_POINTS)
    values = np.array([np.interp(steps, *np.array(curve).T) for curve in seeds])
    estimates = [returns(column.tolist()) or {} for column in values.T]
    middle, low, high = ([one[name] for one in estimates] for name in ("median", "low", "high"))
    axes.plot(steps, middle, color=SERIES[0], linewidth=1.6)
    axes.fill_between(steps, low, high, color=SERIES[0], alpha=0.2, linewidth=0)


def schedule(attempts: Sequence[Facts], use: Mapping[str, float | None], width: float) -> Drawn:
    """Attempts on their CPUs over time, and below how many CPUs were busy.

    :param use: job_id → CPU seconds per second of its iterations, for attempts that have not said it themselves.
    """
    lanes = lanes_of(attempts)
    begin, end = min(attempt["started_at"] for attempt in attempts), max(attempt["until"] for attempt in attempts)
    scale, unit = drawing.time_unit(end - begin)
    lane_in = min(0.3, max(0.02, 4.5 / len(lanes)))
    use_in, below, between, above, left, right = 0.9, 0.42, 0.42, 0.3, 0.55, 0.1
    upper_in = lane_in * len(lanes)
    drawn = drawing.sheet(width, below + use_in + between + upper_in + above)
    upper = drawing.axes_at(drawn, left, below + use_in + between, width - left - right, upper_in)
    lower = drawing.axes_at(drawn, left, below, width - left - right, use_in)
    _bars(upper, attempts, lanes, begin, scale, end, width - left - right, lane_in)
    times, busy = _busy(attempts, use, (end - begin) / HAND_OVER)
    lower.step([(moment - begin) / scale for moment in times], busy, where="post", color=SERIES[0])
    lower.fill_between([(moment - begin) / scale for moment in times], busy, step="post", color=SERIES[0], alpha=0.2)
    lower.axhline(len(lanes), color=DIM, linestyle="--", linewidth=0.9)
    lower.set_ylim(0, max([len(lanes), *busy]) * 1.1)
    lower.set_ylabel("CPUs busy")
    lower.set_xlabel(f"{unit} since the first job started")
    for axes in (upper, lower):
        axes.set_xlim(0, max((end - begin) / scale, 1e-9))
    drawing.plain_ticks(lower, y=True, most=4)
    drawing.plain_ticks(lower, x=True, most=5 if drawing.is_narrow(width) else 10)
    upper.set_xticklabels([])
    upper.grid(visible=False, axis="y")
    used = [name for name in ENDINGS if any(ending(attempt) == name for attempt in attempts)]
    drawing.swatches(drawn, [ENDINGS[name] for name in used], used, columns=4)
    return drawn


def lanes_of(attempts: Sequence[Facts]) -> dict[str, list[int]]:
    """CPU, or slot where attempts are not bound to CPUs of one machine → places of its attempts in ``attempts``."""
    lanes: dict[str, list[int]] = {}
    if all(attempt["cpus"] and ", " not in (attempt.get("node") or "") for attempt in attempts):
        held = [
            (attempt.get("node") or "", cpu, place) for place, attempt in enumerate(attempts) for cpu in attempt["cpus"]
        ]
        for node, cpu, place in sorted(held):
            lanes.setdefault(f"{node} CPU {cpu}".strip(), []).append(place)
        return lanes
    free_at: list[float] = []
    for place, attempt in sorted(enumerate(attempts), key=lambda pair: pair[1]["started_at"]):
        slot = drawing.take_slot(free_at, attempt["started_at"], attempt["until"])
        lanes.setdefault(f"slot {slot}", []).append(place)
    return lanes


def _bars(
    axes: Axes,
    attempts: Sequence[Facts],
    lanes: Mapping[str, Sequence[int]],
    begin: float,
    scale: float,
    end: float,
    width_in: float,
    lane_in: float,
) -> None:
    for lane, places in enumerate(lanes.values()):
        for name, colour in ENDINGS.items():
            spans = [
                ((attempts[place]["started_at"] - begin) / scale, _length(attempts[place]) / scale)
                for place in places
                if ending(attempts[place]) == name
            ]
            if spans:
                edge = 0.5 if len(spans) < 80 else 0.1
                axes.broken_barh(
                    spans, (lane - 0.42, 0.84), facecolors=colour, edgecolors=FACE, linewidth=edge, alpha=0.85
                )
        for place in places if lane_in > 0.11 else ():
            attempt = attempts[place]
            room_in = _length(attempt) / max(end - begin, 1e-9) * width_in
            middle = (attempt["started_at"] - begin + _length(attempt) / 2) / scale
            drawing.name_bar(axes, lane, middle, room_in, attempt["job_id"])
    labelled = range(0, len(lanes), max(1, round(0.13 / lane_in)))
    axes.set_yticks(list(labelled), [list(lanes)[lane] for lane in labelled])
    axes.set_ylim(len(lanes) - 0.5, -0.5)


def _length(attempt: Facts) -> float:
    return float(attempt["until"] - attempt["started_at"])


def _busy(
    attempts: Sequence[Facts], use: Mapping[str, float | None], least_s: float
) -> tuple[list[float], list[float]]:
    """When the number of busy CPUs changes, and to what; what lasts less than ``least_s`` is passed over."""
    changes: list[tuple[float, float]] = []
    for attempt in attempts:
        share = cpu_share(attempt, use)
        changes += [(attempt["started_at"], share), (attempt["until"], -share)]
    times: list[float] = []
    busy: list[float] = []
    now = 0.0
    for moment, change in sorted(changes):
        now += change
        if times and moment - times[-1] < least_s:
            busy[-1] = max(0.0, now)
        else:
            times.append(moment)
            busy.append(max(0.0, now))
    return times, busy


def cpu_share(attempt: Facts, use: Mapping[str, float | None]) -> float:
    """CPU seconds per second of an attempt: its own word, else that of its job's iterations, else 0."""
    if attempt["cpu_s"] is not None and attempt["wall_s"]:
        return float(attempt["cpu_s"] / attempt["wall_s"])
    return use.get(attempt["job_id"]) or 0.0


def phases(robots: Sequence[Facts], width: float) -> Drawn:
    """Shares of the time of iterations, one bar a robot."""
    narrow = drawing.is_narrow(width)
    left, right = (1.25, 0.55) if narrow else (2.2, 1.6)
    bar_in, below, above = 0.2, 0.4, 0.62 if narrow else 0.45
    drawn = drawing.sheet(width, below + above + bar_in * len(robots))
    axes = drawing.axes_at(drawn, left, below, width - left - right, bar_in * len(robots))
    begin = [0.0] * len(robots)
    for name, (_, colour) in PHASES.items():
        shares = [robot["phases"][f"{name}_s"] / robot["timed_s"] * 100 for robot in robots]
        axes.barh(
            range(len(robots)),
            shares,
            left=begin,
            height=0.76,
            color=colour,
            edgecolor=FACE,
            linewidth=0.4,
        )
        begin = [before + share for before, share in zip(begin, shares, strict=True)]
    for place, robot in enumerate(robots):
        delay = robot["run_delay_s"]
        text = "" if delay is None else percent(delay / robot["timed_s"]) + ("" if narrow else " waiting for a CPU")
        axes.text(101, place, text, va="center", fontsize=7, color=DIM)
    axes.set_yticks(range(len(robots)), [plain(robot["robot"], 20 if narrow else 36) for robot in robots])
    axes.set_ylim(len(robots) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the time of iterations")
    axes.grid(visible=False, axis="y")
    labels, colours = zip(*PHASES.values(), strict=True)
    drawing.swatches(drawn, colours, labels, columns=2 if narrow else 6)
    return drawn


def varied(panels: Sequence[tuple[str, str, Sequence[tuple[Any, float]]]], width: float) -> Drawn:
    """One panel a robot and varied key.

    :param panels: ``(robot, key, [(value, return), …])``.
    """
    drawn, found = drawing.panels(width, len(panels), least_in=2.6, height_in=1.5, most=3)
    for axes, (name, key, points) in zip(found, panels, strict=True):
        values = list(dict.fromkeys(map(_shown, (value for value, _ in points))))
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value, _ in points)
        if numeric:
            values = list(map(_shown, sorted({value for value, _ in points})))
        places = [values.index(_shown(value)) for value, _ in points]
        axes.scatter(places, [result for _, result in points], s=14, color=SERIES[0], alpha=0.55, linewidths=0)
        groups = [
            sorted(result for place, (_, result) in zip(places, points, strict=True) if place == at)
            for at in range(len(values))
        ]
        axes.plot(range(len(values)), [_median(group) for group in groups], color=SERIES[1], marker="_", markersize=14)
        longest = 9 if len(values) > 4 else 14
        labelled = range(0, len(values), max(1, len(values) // 8))
        axes.set_xticks(list(labelled), [plain(values[place], longest) for place in labelled])
        axes.set_xlim(-0.5, len(values) - 0.5)
        drawing.plain_ticks(axes, y=True)
        axes.set_title(plain(name, 36), fontsize=7.5)
        axes.set_xlabel(plain(key, 44))
    found[0].set_ylabel("return", color=INK)
    return drawn


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
