"""What a race has found, as the first section of the report of its run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.decoding import from_values
from orchestrator.features.compare import race_view
from orchestrator.features.compare.declared_settings import Difference
from orchestrator.features.compare.race_notes import RESULTS
from orchestrator.features.compare.race_result import RacedJob, RaceResult
from orchestrator.report.document import Columns, Part, Section, Table, Text, table
from orchestrator.report.number_format import one_line

MOST_TEXT = 400
"""Letters of a sentence."""


def of_directory(run_dir: Path) -> list[Section]:
    """Return a section for each race that has ended in this run directory."""
    recorded = run_reader.read_json_object(run_dir / RESULTS) or {}
    found = {by: raced for by, facts in recorded.items() if (raced := _read(by, facts)) is not None}
    numbers = {"race": {by: recorded[by] for by in found}}
    return [_section(raced, numbers) for raced in found.values()]


def _read(by: str, facts: Any) -> RaceResult | None:
    """None where ``facts`` are not what a race by this figure writes."""
    if not isinstance(facts, Mapping):
        return None
    try:
        found = from_values(RaceResult, facts)
    except ValueError:
        return None
    is_whole = len(found.jobs) == 2 and all(job.values for job in found.jobs)
    has_limit = found.outcome != "no difference" or found.smallest_difference is not None
    return found if found.by == by and is_whole and has_limit else None


def _section(raced: RaceResult, numbers: Mapping[str, Any]) -> Section:
    columns: Columns[RacedJob] = {"job": lambda job: one_line(job.name), **race_view.FIGURES}
    caption = (
        f"{one_line(raced.by)} of both, with the same seeds: those of {one_line(str(raced.run_dir))} that count, "
        f"and those that were trained for the race. {race_view.METHOD}"
    )
    parts: list[Part] = [
        Text(sentences=[one_line(raced.sentence, MOST_TEXT)]),
        table(raced.jobs, columns, caption=caption, text=["job"]),
    ]
    if raced.settings:
        parts.append(_settings(raced))
    parts += [Text(sentences=[one_line(remark, MOST_TEXT)]) for remark in raced.remarks]
    title = f"Race by {one_line(raced.by)}"
    return Section(title=title, parts=parts, numbers=numbers, is_first=True)


def _settings(raced: RaceResult) -> Table:
    first, second = (
        f"{letter}: {one_line(job.name)}" for letter, job in zip("AB", raced.jobs, strict=True)
    )
    columns: Columns[Difference] = {
        "setting": lambda one: one_line(one.what),
        first: lambda one: one_line(one.shown[0]),
        second: lambda one: one_line(one.shown[1]),
    }
    caption = "What both are trained with, where that differs."
    return table(raced.settings, columns, caption=caption, text=list(columns))
