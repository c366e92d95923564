"""The figures of a benchmark, drawn from its facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.report import drawing
from orchestrator.report.drawing import COLOURS, DIM, FACE, INK, MARKERS, PHASES, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

Facts: TypeAlias = Mapping[str, Any]
Curves: TypeAlias = Mapping[str, Mapping[int, Facts]]
"""Arm → processes → estimate; ``cut`` in it marks a bound, of what was cut off."""

DODGE = 0.09
"""Arms stand beside each other by this part of the distance between levels."""
LAW_POINTS = 60


def speedup(
    speedups: Curves, efficiencies: Curves, capacity: int, width: float, *, unit: str = "processes at once"
) -> Drawn:
    """Speed-up and efficiency of every arm against the ideal.

    :param unit: of levels.
    """
    levels = _levels(speedups)
    drawn, (left, right) = _two(width, len(speedups))
    left.plot(range(len(levels)), [min(level, capacity) for level in levels], color=DIM, linestyle="--", linewidth=1)
    right.axhline(100, color=DIM, linestyle="--", linewidth=1)
    _curves(left, speedups, levels)
    _curves(right, efficiencies, levels, scale=100)
    left.set_ylabel("speed-up")
    right.set_ylabel("efficiency (%)")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.set_xlabel(unit)
        drawing.plain_ticks(axes, y=True, most=6)
    _arm_legend(drawn, list(speedups), width, ideal=True)
    return drawn


def _two(width: float, arms: int) -> tuple[Drawn, tuple[Axes, Axes]]:
    """Two axes beside each other, on a phone above each other, with room for a legend over them."""
    narrow = drawing.is_narrow(width)
    legend_in = 0.2 * (-(-(arms + 1) // (2 if narrow else 4))) + 0.12
    left, below, height = 0.6, 0.45, 2.3
    if narrow:
        drawn = drawing.sheet(width, 2 * (height + below) + legend_in)
        upper = drawing.axes_at(drawn, left, height + 2 * below, width - left - 0.1, height - 0.1)
        return drawn, (upper, drawing.axes_at(drawn, left, below, width - left - 0.1, height - 0.1))
    drawn = drawing.sheet(width, height + below + legend_in)
    half = width / 2
    first = drawing.axes_at(drawn, left, below, half - left - 0.15, height - 0.1)
    return drawn, (first, drawing.axes_at(drawn, half + left, below, half - left - 0.1, height - 0.1))


def _levels(curves: Curves) -> list[int]:
    return sorted({level for levels in curves.values() for level in levels})


def _curves(axes: Axes, curves: Curves, levels: Sequence[int], scale: float = 1.0, bound: str = "≤") -> None:
    """:param bound: how bounds are marked."""
    for number, (_, points) in enumerate(curves.items()):
        shift = (number - (len(curves) - 1) / 2) * DODGE
        colour, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
        known = sorted(level for level in points if points[level]["median"] is not None)
        places = [levels.index(level) + shift for level in known]
        medians = [points[level]["median"] * scale for level in known]
        axes.plot(places, medians, color=colour, linewidth=1, alpha=0.5)
        axes.plot(places, medians, color=colour, marker=marker, markersize=4.5, linewidth=0)
        for place, level in zip(places, known, strict=True):
            one = points[level]
            if one["low"] is not None and one["high"] is not None:
                axes.vlines(place, one["low"] * scale, one["high"] * scale, color=colour, linewidth=1)
            if one.get("cut"):
                axes.annotate(
                    bound, (place, one["median"] * scale), (0, 5), textcoords="offset points", color=colour, ha="center"
                )
    axes.set_xticks(range(len(levels)), [str(level) for level in levels])
    axes.set_xlim(-0.45, len(levels) - 0.55)
    axes.set_xlabel("processes at once")


def _arm_legend(drawn: Drawn, arms: Sequence[str], width: float, *, ideal: bool = False) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=SERIES[number % len(SERIES)], marker=MARKERS[number % len(MARKERS)], markersize=4)
        for number, _ in enumerate(arms)
    ]
    labels = list(arms)
    if ideal:
        handles.append(Line2D([], [], color=DIM, linestyle="--"))
        labels.append("ideal")
    drawing.legend(drawn, handles, labels, columns=2 if drawing.is_narrow(width) else 4)


def witnesses(latencies: Curves, delays: Curves, width: float) -> Drawn:
    """Time of one update of the network, and time spent waiting for a CPU, against processes."""
    levels = _levels(latencies)
    drawn, (left, right) = _two(width, len(latencies))
    _curves(left, latencies, levels, scale=1000, bound="≥")
    _curves(right, delays, levels, bound="≥")
    left.margins(y=0.12)  # for the marks
    right.margins(y=0.12)
    left.set_yscale("log")
    _log_ticks(left)
    right.set_ylim(bottom=0)
    drawing.plain_ticks(right, y=True)
    left.set_ylabel("ms per optimiser step")
    right.set_ylabel("s waiting for a CPU")
    _arm_legend(drawn, list(latencies), width)
    return drawn


def _log_ticks(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(drawing.short))
    axes.yaxis.set_minor_formatter(NullFormatter())


def phases(
    arms: Mapping[str, Mapping[int, Mapping[str, float]]], cut: Mapping[str, Sequence[int]], width: float
) -> Drawn:
    """Seconds per 1,000 env_steps of one process by phase; one panel an arm, one bar a level.

    :param cut: arm → levels that were cut off.
    """
    narrow = drawing.is_narrow(width)
    legend_in = 0.72 if narrow else 0.35
    drawn, found = drawing.panels(width, len(arms), least_in=1.9, height_in=1.2, above_all=legend_in)
    for axes, (arm, levels) in zip(found, arms.items(), strict=True):
        begin = [0.0] * len(levels)
        for name, (_, colour) in PHASES.items():
            seconds = [parts.get(name) or 0.0 for parts in levels.values()]
            axes.bar(range(len(levels)), seconds, bottom=begin, width=0.7, color=colour, edgecolor=FACE, linewidth=0.4)
            begin = [before + more for before, more in zip(begin, seconds, strict=True)]
        labels = [f"{level} (≥)" if level in cut[arm] else str(level) for level in levels]
        axes.set_xticks(range(len(levels)), labels)
        axes.set_title(arm, fontsize=7.5)
        axes.set_xlabel("processes", labelpad=1)
        axes.grid(visible=False, axis="x")
        drawing.plain_ticks(axes, y=True)
    drawing.swatches(
        drawn,
        [colour for _, colour in PHASES.values()],
        [name for name, _ in PHASES.values()],
        columns=2 if narrow else 6,
    )
    return drawn


def law(arms: Mapping[str, Facts], speedups: Curves, width: float) -> Drawn:
    """The fitted law, what it predicts, and what was measured; one panel an arm."""
    from orchestrator.bench.usl import speedup as by_law

    drawn, found = drawing.panels(width, len(arms), least_in=2.6, height_in=1.7, most=3)
    for axes, (arm, fit) in zip(found, arms.items(), strict=True):
        predicted = {int(cores): one for cores, one in fit["predictions"].items()}
        most = max(predicted)
        cores = [most ** (step / LAW_POINTS) for step in range(LAW_POINTS + 1)]
        sigma, kappa = fit["sigma"]["median"], fit["kappa"]["median"]
        axes.plot(cores, cores, color=DIM, linestyle="--", linewidth=1)
        axes.plot(cores, [by_law(number, sigma, kappa) for number in cores], color=SERIES[0])
        for number, one in predicted.items():
            if one["low"] is not None and one["high"] is not None:
                axes.vlines(number, max(one["low"], 0.1), one["high"], color=SERIES[0], linewidth=3, alpha=0.35)
        points = {level: one for level, one in speedups.get(arm, {}).items() if level in fit["levels"]}
        axes.plot(list(points), [one["median"] for one in points.values()], "o", color=SERIES[1], markersize=4.5)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        ticks = [number for number in (1, 2, 4, 8, 16, 32, 64, 128, 256) if number <= most]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_ylim(0.5, most * 1.2)
        axes.set_title(arm, fontsize=7.5)
        axes.set_xlabel("processes with a core each")
    found[0].set_ylabel("speed-up", color=INK)
    return drawn


def strong(levels: Mapping[int, Facts], width: float) -> Drawn:
    """The schedule of the whole job file at every level, each over the same time axis."""
    scale, unit = drawing.time_unit(max(one["makespan_s"] for one in levels.values()))
    lanes = {level: _lanes(one["jobs"]) for level, one in levels.items()}
    lane_in = min(0.26, 5.0 / sum(map(len, lanes.values())))
    left, above, below, between = 0.6, 0.3, 0.42, 0.34
    drawn = drawing.sheet(
        width, below + sum(lane_in * len(found) + between for found in lanes.values()) + above - between
    )
    bottom = below
    for number, (level, one) in enumerate(reversed(list(levels.items()))):
        height = lane_in * len(lanes[level])
        axes = drawing.axes_at(drawn, left, bottom, width - left - 0.15, height)
        _schedule(
            axes, lanes[level], one, scale, (width - left) / max(found["makespan_s"] for found in levels.values())
        )
        axes.set_xlim(0, max(found["makespan_s"] for found in levels.values()) / scale * 1.02)
        axes.set_title(
            f"{level} at once: {one['makespan_s'] / scale:.3g} {unit}, bound {one['lower_bound_s'] / scale:.3g}",
            fontsize=7.5,
        )
        if number == 0:
            axes.set_xlabel(unit)
            drawing.plain_ticks(axes, x=True, most=8)
        else:
            drawing.plain_ticks(axes, x=True, most=8)
            axes.set_xticklabels([])
        bottom += height + between
    return drawn


def _lanes(jobs: Sequence[Facts]) -> list[tuple[str, list[Facts]]]:
    """CPU, or slot of jobs without one → its jobs."""
    found: dict[str, list[Facts]] = {}
    free_at: list[float] = []
    for job in sorted(jobs, key=lambda one: one["started_s"]):
        cpus = job.get("cpus") or ()
        if not cpus:
            slot = drawing.take_slot(free_at, job["started_s"], job["ended_s"])
        for name in [f"CPU {cpu}" for cpu in cpus] or [f"slot {slot}"]:
            found.setdefault(name, []).append(job)
    return sorted(found.items(), key=lambda item: (len(item[0]), item[0]))


def _schedule(
    axes: Axes, lanes: Sequence[tuple[str, list[Facts]]], one: Facts, scale: float, in_a_second: float
) -> None:
    for place, (_, jobs) in enumerate(lanes):
        for job in jobs:
            colour = SERIES[0] if job.get("state", "SUCCEEDED") == "SUCCEEDED" else COLOURS["red"][0]
            length = job["ended_s"] - job["started_s"]
            axes.broken_barh(
                [(job["started_s"] / scale, length / scale)],
                (place - 0.42, 0.84),
                facecolors=colour,
                edgecolors=FACE,
                linewidth=0.5,
            )
            middle = (job["started_s"] + length / 2) / scale
            drawing.name_bar(axes, place, middle, length * in_a_second, job["job_id"])
    axes.axvline(one["lower_bound_s"] / scale, color=SERIES[1], linestyle="--", linewidth=1.4)
    axes.set_yticks(range(len(lanes)), [name for name, _ in lanes])
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def packing(points: Sequence[Facts], best: Facts | None, width: float) -> Drawn:
    """Aggregate env_steps/s: processes × threads to the right, environments a process upwards."""
    narrow = drawing.is_narrow(width)
    columns = sorted({(one["processes"], one["threads"], bool(one["smt"])) for one in points})
    rows = sorted({one["n_envs"] for one in points})
    known = {
        (one["n_envs"], (one["processes"], one["threads"], bool(one["smt"]))): one["throughput"]
        for one in points
        if one["throughput"] is not None
    }
    left, below, cell_in = 0.6, 0.55, 0.34
    drawn = drawing.sheet(width, below + 0.15 + cell_in * len(rows))
    axes = drawing.axes_at(drawn, left, below, min(width - left - 0.1, 1.1 * len(columns)), cell_in * len(rows))
    most = max(known.values(), default=1.0)
    for (n_envs, column), throughput in known.items():
        place, height = columns.index(column), rows.index(n_envs)
        share = throughput / most
        is_best = best is not None and (best["processes"], best["threads"], best["n_envs"]) == (*column[:2], n_envs)
        axes.bar(place, 0.94, width=0.94, bottom=height - 0.47, color=SERIES[0], alpha=0.12 + 0.88 * share**2)
        text = drawing.short(round(throughput)) if narrow and len(columns) > 5 else f"{throughput:,.0f}"
        axes.text(
            place,
            height,
            text,
            ha="center",
            va="center",
            fontsize=7.5,
            color=FACE if share > 0.7 else INK,
            weight="bold" if is_best else "normal",
        )
        if is_best:
            axes.bar(place, 0.94, width=0.94, bottom=height - 0.47, facecolor="none", edgecolor=SERIES[1], linewidth=2)
    labels = [f"{processes} × {threads}{' SMT' if smt else ''}" for processes, threads, smt in columns]
    axes.set_xticks(range(len(columns)), labels)
    axes.set_yticks(range(len(rows)), [str(row) for row in rows])
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.set_xlabel("processes × threads of each")
    axes.set_ylabel("n_envs")
    axes.grid(visible=False)
    return drawn
