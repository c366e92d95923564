"""What features add to a report, and reports of theirs, checked whole before any of it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.core.errors import LedgerError, OrchestratorError
from orchestrator.core.feature import Feature, ask, features, problems_of
from orchestrator.report.document import (
    AddedSections,
    Cell,
    Document,
    Figure,
    Headline,
    Section,
    ShownJobs,
    Table,
    Text,
    of_feature,
)
from orchestrator.report.number_format import json_value

FIGURE_NAME = re.compile("[A-Za-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*")
OF_EVERY_REPORT = ("figures",)
"""Keys of ``report.json`` beside the facts of its document."""


def gather(run_dir: Path, others: Sequence[Path], taken: Iterable[str]) -> list[AddedSections]:
    """What features add to the report of ``run_dir``. What cannot be used is left out, each feature's
    as a whole.

    :param taken: keys that ``report.json`` has already.
    :raises OrchestratorError: a feature refuses to compare it with ``others``.
    :raises LedgerError: the ledger is damaged.
    """
    keys = {*taken, *OF_EVERY_REPORT}
    figures: set[str] = set()
    found: list[AddedSections] = []
    for feature in features():
        added = _ask_feature(feature, run_dir, others, keys, figures)
        if added is not None:
            found.append(added)
            keys.add(added.name)
            figures.update(_figures(added))
    return found


def _ask_feature(
    feature: Feature,
    run_dir: Path,
    others: Sequence[Path],
    keys: Collection[str],
    other_figures: Collection[str],
) -> AddedSections | None:
    """What one feature adds; None where that is nothing, or cannot be used."""
    refusals = (OrchestratorError,) if others else (LedgerError,)
    with problems_of(feature.name, "adds no sections to reports", passing=refusals):
        given = ask(feature, "report_sections", run_dir, others)
        if given is not None:
            added = _check_added(given, keys, other_figures)
            _check_figures_of(feature, added)
            return replace(added, sections=of_feature(added.sections, feature.name))
    return None


def _figures(added: AddedSections) -> list[str]:
    parts = [part for section in added.sections for part in section.parts]
    return [part.name for part in parts if isinstance(part, Figure)]


def _check_added(
    given: Any, keys: Collection[str], other_figures: Collection[str]
) -> AddedSections:
    """``given``, if a report can show it.

    :param other_figures: names of figures that others add.
    :raises TypeError: a part of it has another type.
    :raises ValueError: a name cannot be used, or the facts are no JSON.
    """
    added: AddedSections = _of_type(given, AddedSections, "what it gives")
    _of_type(added.name, str, "name")
    if added.name in keys:
        raise ValueError(f"report.json has {added.name} already")
    json.dumps(json_value(added.facts), allow_nan=False)
    _check_content(added)
    if added.shown_jobs is not None:
        shown = _of_type(added.shown_jobs, ShownJobs, "shown_jobs")
        _of_type(shown.which, str, "which of shown_jobs")
        _all_of_type(list(shown.job_ids), str, "job_ids of shown_jobs")
    _check_unique([*other_figures, *_figures(added)])
    return added


def checked_document(given: Any, feature: str) -> Document:
    """The report that a feature has made.

    :raises TypeError: a part of it has another type.
    :raises ValueError: a name cannot be used, or the facts are no JSON.
    """
    document: Document = _of_type(given, Document, "its report")
    _all_of_type((document.title, document.subtitle), str, "its report")
    json.dumps(json_value(_of_type(document.facts, Mapping, "facts")), allow_nan=False)
    _check_content(document)
    _check_unique([figure.name for figure in document.figures()])
    return replace(document, sections=of_feature(document.sections, feature))


def _check_figures_of(feature: Feature, added: AddedSections) -> None:
    """:raises ValueError: a figure could have the name of one of the program, or of others."""
    prefix = f"{feature.name.replace('_', '-')}-"
    for name in _figures(added):
        if not name.startswith(prefix):
            raise ValueError(f"the figure {name} needs a name that begins with {prefix}")


def _check_content(one: AddedSections | Document) -> None:
    for section in _all_of_type(one.sections, Section, "sections"):
        _check_section(section)
    for headline in _all_of_type(one.headlines, Headline, "headlines"):
        _all_of_type((headline.label, headline.value, headline.note), str, "a headline")


def _check_unique(figures: Sequence[str]) -> None:
    for index, name in enumerate(figures):
        if name in figures[:index]:
            raise ValueError(f"there is a figure {name} already")


def _check_section(section: Section) -> None:
    _of_type(section.title, str, "the title of a section")
    for part in _all_of_type(section.parts, (Figure, Table, Text), f"parts of {section.title!r}"):
        where = f"{type(part).__name__} of {section.title!r}"
        if isinstance(part, Figure):
            _all_of_type((part.name, part.title, part.caption), str, where)
            if not FIGURE_NAME.fullmatch(part.name):
                raise ValueError(f"{part.name!r} is no name of letters and hyphens")
            if not callable(part.draw):
                raise TypeError(f"{where}: draw is no function; this is {part.draw!r}")
        elif isinstance(part, Table):
            _check_table(part, where)
        else:
            _all_of_type(part.sentences, str, where)


def _check_table(table: Table, where: str) -> None:
    _of_type(table.caption, str, where)
    _of_type(table.shown, int, where)
    _all_of_type(table.columns, str, where)
    _all_of_type(list(table.text), str, where)
    for row in _all_of_type(table.rows, (list, tuple), where):
        if len(row) != len(table.columns):
            raise ValueError(f"{where}: a row has {len(row)} cells, not {len(table.columns)}")
        for cell in _all_of_type(row, Cell, where):
            _of_type(cell.text, str, where)


def _of_type(value: Any, kind: Any, where: str) -> Any:
    """``value``. :raises TypeError: it is of another type."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = " or ".join(one.__name__ for one in kinds)
        raise TypeError(f"{where}: expected {expected}; this is {value!r}")
    return value


def _all_of_type(values: Any, kind: Any, where: str) -> Any:
    """``values``. :raises TypeError: they are no list, or one of them is of another type."""
    for value in _of_type(values, (list, tuple), where):
        _of_type(value, kind, where)
    return values
