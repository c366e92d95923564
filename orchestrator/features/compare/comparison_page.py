"""The web page of ``compare``: learning curves of several experiments over each other, and what
differs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.analysis import run_reader
from orchestrator.analysis.run_reader import LearningCurve
from orchestrator.analysis.statistics import INTERVALS
from orchestrator.client import run_snapshot
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import refuse_special_file, write_whole
from orchestrator.features.compare.comparison import (
    LETTERS,
    Comparison,
    Line,
    all_remarks,
    any_pair,
    lines,
)
from orchestrator.features.compare.declared_settings import (
    DifferenceOfAll,
    merged_differences,
)
from orchestrator.jobfile.job_names import without_seed
from orchestrator.report import drawing, html_page
from orchestrator.report.document import Columns, Document, Figure, Section, Table, Text, table
from orchestrator.report.figures import draw_curves
from orchestrator.report.number_format import interval, one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

MOST_PANELS = 24
SETTINGS = (
    "Settings that differ, of the jobs in brackets, otherwise of all jobs that have succeeded."
)


def write(path: Path, comparisons: Sequence[Comparison]) -> None:
    """Write the page of experiments that are all compared with the same first one.

    :raises UsageError: they are benchmarks, or ``path`` cannot be written.
    """
    if comparisons[0].kind == "benchmark":
        raise UsageError(
            "--output: learning curves are of experiments; `report` draws the figures of a benchmark"
        )
    content = document(comparisons)
    html = html_page.html(
        content,
        {figure.name: drawing.render(figure) for figure in content.figures()},
        has_files=False,
    )
    try:
        refuse_special_file(path)
        write_whole(path, html, durable=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--output {path}: cannot be written ({reason}); expected the path of a file"
        ) from error


def document(comparisons: Sequence[Comparison]) -> Document:
    runs = [comparisons[0].a, *(one.b for one in comparisons)]
    names = [f"{letter}: {one_line(run)}" for letter, run in zip(LETTERS, runs, strict=False)]
    curves = [_curves(runs[0])]
    for one in comparisons:  # a trial of another point has nothing to be drawn over
        other_trials = set(one.other_trials)
        of_run = _curves(one.b)
        curves.append({case: found for case, found in of_run.items() if case not in other_trials})
    cases = [case for case in curves[0] if any(case in others for others in curves[1:])]
    sections = []
    if cases:
        shown = {case: [of_run.get(case, []) for of_run in curves] for case in cases[:MOST_PANELS]}
        left_out = (
            f" Only the first {MOST_PANELS} of {len(cases)} jobs are drawn."
            if len(cases) > MOST_PANELS
            else ""
        )
        caption = (
            "Return of training episodes against env_steps, by job. Thin lines are seeds; a thick line is their mean "
            f"with its 95 % interval ({INTERVALS}).{left_out}"
        )
        draw = partial(_curves_over_each_other, shown, names)
        figure = Figure(
            name="learning-curves",
            title="Learning curves over each other",
            caption=caption,
            draw=draw,
        )
        sections.append(Section(title="Learning curves", parts=[figure]))
    settings = merged_differences([one.settings for one in comparisons])
    others = merged_differences([one.differences for one in comparisons])
    sections += [
        _differences("Settings", SETTINGS, settings, names),
        _differences("Other differences", "Learner, machine and versions.", others, names),
    ]
    if remarks := all_remarks(comparisons):
        sentences = list(map(one_line, remarks))
        sections.append(Section(title="Remarks", parts=[Text(sentences=sentences)]))
    return Document(
        title="Comparison",
        subtitle=f"{', '.join(names)} · {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}",
        headlines=[],
        sections=[*sections, Section(title="Figures", parts=[_figures(comparisons, names)])],
    )


def _curves_over_each_other(
    cases: Mapping[str, Sequence[Sequence[LearningCurve]]], names: Sequence[str]
) -> Drawn:
    """Draw one panel per case, with the curves of each run directory in a colour of its own.

    :param cases: name → for each of ``names`` the curves of the seeds; none where it lacks the case.
    """
    legend_in = 0.17 * len(names) + 0.1
    drawn, panels = drawing.panels(len(cases), columns=3, height_in=1.4, legend_in=legend_in)
    colours = drawing.SERIES[: len(names)]
    for axes, (case, runs) in zip(panels, cases.items(), strict=True):
        draw_curves(axes, case, dict(zip(colours, runs, strict=True)))
    drawing.colour_legend(drawn, colours, [one_line(name, 90) for name in names], columns=1)
    return drawn


def _differences(
    title: str, caption: str, rows: Sequence[DifferenceOfAll], names: Sequence[str]
) -> Section:
    if not rows:
        return Section(title=title, parts=[Text(sentences=["Nothing differs."])])
    columns: Columns[DifferenceOfAll] = {"setting": lambda row: one_line(row.what)}
    columns |= {name: partial(_value, place) for place, name in enumerate(names)}
    listing = table(rows, columns, caption=caption, text=list(columns))
    return Section(title=title, parts=[listing])


def _value(place: int, row: DifferenceOfAll) -> str:
    return one_line(row.values[place])


def _figures(comparisons: Sequence[Comparison], names: Sequence[str]) -> Table:
    """Means with 95 % intervals, and ratios to the first run directory."""
    rows = lines(comparisons)
    columns: Columns[Line] = {
        "job": lambda line: one_line(any_pair(line).what),
        "figure": lambda line: any_pair(line).figure,
        names[0]: lambda line: interval(any_pair(line).a.facts()),
    }
    for place, name in enumerate(names[1:]):
        columns[name] = partial(_of, place)
        columns[f"{name[0]} / A"] = partial(_of, place, is_ratio=True)
    caption = (
        f"Of jobs that have succeeded: means over seeds with 95 % intervals ({INTERVALS}), and their ratios "
        "to A."
    )
    return table(rows, columns, caption=caption, text=("job", "figure"))


def _of(place: int, line: Line, *, is_ratio: bool = False) -> str:
    pair = line[place]
    if pair is None:
        return interval(None)
    estimate = pair.ratio if is_ratio else pair.b
    return interval(None if estimate is None else estimate.facts())


def _curves(run_dir: Path) -> dict[str, list[LearningCurve]]:
    """Name of the jobs that differ in their seed alone → their learning curves."""
    snapshot = run_snapshot.status(run_dir)
    curves: dict[str, list[LearningCurve]] = {}
    for row in snapshot.rows:
        curve = run_reader.learning_curve(snapshot.paths.job(row["job_id"]).progress_csv)
        if curve:
            curves.setdefault(without_seed(row["job_id"], row["seed"]), []).append(curve)
    return curves
