"""The figures of a benchmark, drawn from its facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from orchestrator.features.bench.scaling_figures import (
    LEGEND_COLUMNS,
    Curves,
    Cut,
    draw_curves,
    pair_of_axes,
)
from orchestrator.features.bench.usl import speedup
from orchestrator.report import drawing
from orchestrator.report.drawing import DIM, FACE, INK, PHASES, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

Facts: TypeAlias = Mapping[str, Any]
LAW_POINTS = 60


def latency(latencies: Curves, delays: Curves, cut: Cut) -> Drawn:
    """Time of one update of the network, and time spent waiting for a CPU, against processes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    drawn, (left, right), levels = pair_of_axes(latencies, legend_entries=len(latencies))
    draw_curves(left, latencies, levels, cut, scale=1000, bound="≥")
    draw_curves(right, delays, levels, cut, bound="≥")
    left.margins(y=0.12)  # for the marks
    right.margins(y=0.12)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: drawing.short(value)))
    left.yaxis.set_minor_formatter(NullFormatter())
    right.set_ylim(bottom=0)
    drawing.plain_ticks(right, y=True)
    left.set_ylabel("ms per optimiser step")
    right.set_ylabel("s waiting for a CPU")
    drawing.legend(drawn, *left.get_legend_handles_labels(), columns=LEGEND_COLUMNS)
    return drawn


def phases(baselines: Mapping[str, Mapping[int, Mapping[str, float]]], cut: Cut) -> Drawn:
    """Seconds per 1,000 env_steps of one process by phase; a panel per baseline."""
    drawn, panels = drawing.panels(len(baselines), columns=4, height_in=1.2, legend_in=0.45)
    for axes, (baseline, levels) in zip(panels, baselines.items(), strict=True):
        begin = [0.0] * len(levels)
        for name, (_, colour) in PHASES.items():
            seconds = [parts.get(name) or 0.0 for parts in levels.values()]
            axes.bar(
                range(len(levels)),
                seconds,
                bottom=begin,
                width=0.7,
                color=colour,
                edgecolor=FACE,
                linewidth=0.4,
            )
            begin = [before + more for before, more in zip(begin, seconds, strict=True)]
        labels = [f"{level} (≥)" if level in cut[baseline] else str(level) for level in levels]
        axes.set_xticks(range(len(levels)), labels)
        axes.set_title(baseline, fontsize=7.5)
        axes.set_xlabel("processes", labelpad=1)
        axes.grid(visible=False, axis="x")
        drawing.plain_ticks(axes, y=True)
    drawing.phase_legend(drawn)
    return drawn


def law(fits: Mapping[str, Facts], speedups: Curves) -> Drawn:
    """The fitted law, what it predicts, and what was measured; one panel per baseline."""
    drawn, panels = drawing.panels(len(fits), columns=3, height_in=1.7)
    for axes, (baseline, fit) in zip(panels, fits.items(), strict=True):
        most = max(map(int, fit["predictions"]))
        cores = [most ** (step / LAW_POINTS) for step in range(LAW_POINTS + 1)]
        by_law = [speedup(number, fit["sigma"], fit["kappa"]) for number in cores]
        axes.plot(cores, cores, color=DIM, linestyle="--", linewidth=1)
        axes.plot(cores, by_law, color=SERIES[0])
        points = {
            level: one
            for level, one in speedups.get(baseline, {}).items()
            if level in fit["levels"]
        }
        axes.plot(
            list(points),
            [one["value"] for one in points.values()],
            "o",
            color=SERIES[1],
            markersize=4.5,
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        ticks = [2**power for power in range(9) if 2**power <= most]
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.set_yticks(ticks, list(map(str, ticks)))
        axes.minorticks_off()
        axes.set_ylim(0.5, most * 1.2)
        axes.set_title(baseline, fontsize=7.5)
        axes.set_xlabel("processes with a core each")
    panels[0].set_ylabel("speed-up", color=INK)
    return drawn


def makespan(levels: Mapping[int, Facts]) -> Drawn:
    """The schedule of the whole job file at every level, each over the same time axis."""
    span_s = max(level["makespan_s"] for level in levels.values()) * 1.02
    unit_s, unit = drawing.time_unit(span_s / 1.02)
    charts = {level: drawing.lanes(list(map(_bar, one["jobs"]))) for level, one in levels.items()}
    lane_in = min(0.26, 5.0 / sum(map(len, charts.values())))
    left = 0.6
    above = 0.3
    below = 0.42
    between = 0.34
    height_in = (
        below + sum(lane_in * len(lanes) + between for lanes in charts.values()) + above - between
    )
    drawn = drawing.empty_figure(height_in)
    bottom = below
    for level, lanes in reversed(charts.items()):
        axes = drawing.axes_at(
            drawn, left, bottom, drawing.WIDTH_IN - left - 0.15, lane_in * len(lanes)
        )
        drawing.gantt(axes, lanes, span_s=span_s, unit_s=unit_s)
        length = levels[level]["makespan_s"] / unit_s
        bound = levels[level]["lower_bound_s"] / unit_s
        axes.axvline(bound, color=SERIES[1], linestyle="--", linewidth=1.4)
        axes.set_title(
            f"{level} at once: {length:.3g} {unit}, lower bound {bound:.3g}", fontsize=7.5
        )
        drawing.plain_ticks(axes, x=True, most=8)
        if bottom == below:
            axes.set_xlabel(unit)
        else:
            axes.set_xticklabels([])
        bottom += lane_in * len(lanes) + between
    return drawn


def _bar(job: Facts) -> drawing.Bar:
    return drawing.Bar(
        name=job["job_id"],
        begin_s=job["started_s"],
        end_s=job["ended_s"],
        colour=SERIES[0],
        cpus=job.get("cpus") or (),
    )
