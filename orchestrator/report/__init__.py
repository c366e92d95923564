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
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import answers, problems_of
from orchestrator.report.document import Document, Section

__all__ = ["WrittenReport", "compose", "make"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A report that was written."""

    page: Path
    document: Document

    def markdown(self) -> str:
        from orchestrator.report.markdown import markdown

        return markdown(self.document, str(self.page.parent))


def compose(run_dir: Path, same_search: Sequence[Path] = ()) -> Document:
    """The report of ``run_dir``, not written anywhere.

    :param same_search: run directories of the same search with other seeds.
    :raises UsageError: when there is nothing to report, or one of them is another search.
    """
    if not same_search and (of_feature := _of_feature(run_dir)) is not None:
        return _with_added_sections(of_feature(), run_dir)
    from orchestrator.report import experiment_data, experiment_page

    document = experiment_page.document(experiment_data.gather(run_dir, same_search), run_dir)
    return _with_added_sections(document, run_dir)


def _of_feature(run_dir: Path) -> Callable[[], Document] | None:
    """Makes the report of a run directory that is a feature's; None for one of an experiment."""
    return next((make_document for _, make_document in answers("report", run_dir)), None)


def _with_added_sections(document: Document, run_dir: Path) -> Document:
    """With what features add, before the last section, which is about the machine."""
    facts, added_sections = dict(document.facts), list[Section]()
    for feature, added in answers("report_sections", run_dir):
        with problems_of(feature.name, "adds no section"):
            if added.name in facts:
                raise ValueError(f"report.json has {added.name} already")
            facts |= {added.name: added.facts}
            added_sections += added.sections
    sections = [*document.sections[:-1], *added_sections, *document.sections[-1:]]
    return replace(document, sections=sections, facts=facts)


def make(run_dir: Path, same_search: Sequence[Path] = ()) -> WrittenReport:
    """Write ``RUN_DIR/report``: ``index.html``, ``report.json``, a PNG and an SVG per figure, each
    file atomically.

    Figures of an earlier report that are no longer part of it are removed; other files there stay.

    :param same_search: as for :func:`compose`.
    :raises UsageError: when there is nothing to report, or ``RUN_DIR/report`` cannot be written.
    """
    from orchestrator.report import drawing, page
    from orchestrator.report.number_format import json_value

    document = compose(run_dir, same_search)
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
