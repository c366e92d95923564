"""The report of a run directory: a page, its figures and all numbers, in ``RUN_DIR/report``.

It writes nothing else, and works while the run directory is being written. A run directory is an
experiment's, unless a feature says that it has made it. matplotlib, Jinja2 and numpy are imported
when a report is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.analysis import run_reader
from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import OrchestratorError, UsageError
from orchestrator.core.feature import Feature, answers, ask, features, problems_of
from orchestrator.report.document import AddedSections, Document, Headline, Section

__all__ = ["WrittenReport", "compose", "make"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A report that was written."""

    page: Path
    document: Document

    def markdown(self) -> str:
        from orchestrator.report.markdown import markdown

        return markdown(self.document, str(self.page.parent))


def compose(run_dir: Path, others: Sequence[Path] = ()) -> Document:
    """The report of ``run_dir``, not written anywhere.

    :param others: run directories that a feature compares with it: of the same search with other
        seeds.
    :raises OrchestratorError: when there is nothing to report, or nothing to compare.
    """
    if not others and (of_feature := _of_feature(run_dir)) is not None:
        return _with_added(of_feature(), _added(run_dir, ()))
    from orchestrator.report import experiment_data, experiment_page

    added = _added(run_dir, others)
    if others and not any(one.has_compared for _, one in added):
        raise UsageError(
            f"{run_dir}: no installed feature compares it with other run directories; name it alone"
        )
    shown = next((one.shown_jobs for _, one in added if one.shown_jobs is not None), None)
    facts = experiment_data.gather(run_dir, None if shown is None else shown.job_ids)
    return _with_added(experiment_page.document(facts, run_dir, shown), added)


def _of_feature(run_dir: Path) -> Callable[[], Document] | None:
    """Makes the report of a run directory that is a feature's; None for one of an experiment."""
    return next((make_document for _, make_document in answers("report", run_dir)), None)


def _added(run_dir: Path, others: Sequence[Path]) -> list[tuple[Feature, AddedSections]]:
    """What features add.

    :raises OrchestratorError: one of them says that it cannot.
    """
    added: list[tuple[Feature, AddedSections]] = []
    for feature in features():
        refusal: OrchestratorError | None = None
        with problems_of(feature.name, "adds no sections to reports"):
            try:
                given = ask(feature, "report_sections", run_dir, others)
            except OrchestratorError as error:
                refusal = error
            else:
                if given is not None and not isinstance(given, AddedSections):
                    raise TypeError(f"expected AddedSections; this is {given!r}")
                if given is not None:
                    added.append((feature, given))
        if refusal is not None:
            raise refusal
    return added


def _with_added(document: Document, added: Sequence[tuple[Feature, AddedSections]]) -> Document:
    """With what features add: after the first section, which says what it is about, or before the
    last one, which is about the machine.
    """
    facts = dict(document.facts)
    headlines: list[Headline] = []
    first: list[Section] = []
    last: list[Section] = []
    for feature, one in added:
        with problems_of(feature.name, "adds no sections to reports"):
            if one.name in facts:
                raise ValueError(f"report.json has {one.name} already")
            facts[one.name] = one.facts
            headlines += one.headlines
            if one.is_first:
                first += one.sections
            else:
                last += one.sections
    about, *sections, machine = document.sections
    return replace(
        document,
        headlines=[*headlines, *document.headlines],
        sections=[about, *first, *sections, *last, machine],
        facts=facts,
    )


def make(run_dir: Path, others: Sequence[Path] = ()) -> WrittenReport:
    """Write ``RUN_DIR/report``: ``index.html``, ``report.json``, a PNG and an SVG per figure, each
    file atomically.

    Figures of an earlier report that are no longer part of it are removed; other files there stay.

    :param others: as for :func:`compose`.
    :raises OrchestratorError: when there is nothing to report or to compare, or ``RUN_DIR/report``
        cannot be written.
    """
    from orchestrator.report import drawing, page
    from orchestrator.report.number_format import json_value

    document = compose(run_dir, others)
    folder = run_dir / "report"
    drawings = {figure.name: drawing.render(figure) for figure in document.figures()}
    facts = {
        **document.facts,
        "figures": {figure.name: figure.caption for figure in document.figures()},
    }
    try:
        folder.mkdir(exist_ok=True)
        _remove_old(folder, set(drawings))
        for name, drawn in drawings.items():
            write_whole(folder / f"{name}.png", drawn.png, durable=False)
            write_whole(folder / f"{name}.svg", drawn.svg, durable=False)
        text = json.dumps(json_value(facts), indent=1, ensure_ascii=True, allow_nan=False)
        write_whole(folder / "report.json", text + "\n", durable=False)
        write_whole(folder / "index.html", page.html(document, drawings), durable=False)
    except OSError as error:
        advice = "free disk space or fix its permissions, or copy the run directory to a place where you may write"
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); {advice}") from error
    return WrittenReport(page=folder / "index.html", document=document)


def _remove_old(folder: Path, kept: set[str]) -> None:
    names = (run_reader.read_json_object(folder / "report.json") or {}).get("figures")
    for name in names if isinstance(names, dict) else ():
        if name not in kept and name.replace("-", "").isalnum():
            for suffix in ("png", "svg"):
                (folder / f"{name}.{suffix}").unlink(missing_ok=True)
