"""The report of a run directory: a page, its figures and all numbers, in ``RUN_DIR/report``.

It writes nothing else, and works while the run directory is being written. A run directory is an
experiment's, unless a feature says that it has made it. matplotlib, Jinja2 and numpy are imported
when a report is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.analysis import run_reader
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import answers
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.experiment.directory import run_directory
from orchestrator.report.document import AddedSections, Document, ShownJobs

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

    :param others: run directories that a feature compares with it: of the same experiment with other
        seeds.
    :raises OrchestratorError: when there is nothing to report, or nothing to compare.
    """
    from orchestrator.report import experiment_data, experiment_document

    added = [one for _, one in answers("report_sections", run_dir, others)]
    if not others:
        for _, make_document in answers("report", run_dir):
            return _with_added(make_document(), added)
    if others and not any(one.has_compared for one in added):
        run_directory.existing_run(run_dir)  # has a better reason where it is none
        raise UsageError(
            f"{run_dir}: no installed feature compares it with other run directories; name it alone"
        )
    shown = _shown_jobs(added)
    lists_points = any(one.lists_points for one in added)
    facts = experiment_data.gather(
        run_dir, None if shown is None else shown.job_ids, has_varied=not lists_points
    )
    document = experiment_document.document(
        facts,
        run_dir,
        shown=shown,
        has_robots=not lists_points,
        is_begun=any(one.is_first and one.sections for one in added),
    )
    return _with_added(document, added)


def _shown_jobs(added: Sequence[AddedSections]) -> ShownJobs | None:
    """Those that any feature names; None where none does."""
    named = [one.shown_jobs for one in added if one.shown_jobs is not None]
    if not named:
        return None
    return ShownJobs(
        job_ids={job_id for shown in named for job_id in shown.job_ids},
        which="; ".join(shown.which for shown in named),
    )


def _with_added(document: Document, added: Sequence[AddedSections]) -> Document:
    """With what features add: after the first section, which says what it is about, or before the
    last one, which is about the machine.
    """
    about = document.sections[:1]
    sections = document.sections[1:-1]
    machine = document.sections[1:][-1:]
    first = [section for one in added if one.is_first for section in one.sections]
    last = [section for one in added if not one.is_first for section in one.sections]
    return replace(
        document,
        headlines=[*(line for one in added for line in one.headlines), *document.headlines],
        sections=[*about, *first, *sections, *last, *machine],
        facts={**document.facts, **{one.name: one.facts for one in added}},
    )


def make(run_dir: Path, others: Sequence[Path] = ()) -> WrittenReport:
    """Write ``RUN_DIR/report``: ``index.html``, ``report.json``, a PNG and an SVG per figure, each
    file atomically.

    Figures of an earlier report that are no longer part of it are removed; other files there stay.

    :param others: as for :func:`compose`.
    :raises OrchestratorError: when there is nothing to report or to compare, or ``RUN_DIR/report``
        cannot be written.
    """
    from orchestrator.report import drawing, html_page
    from orchestrator.report.number_format import json_value

    document = compose(run_dir, others)
    drawings = {figure.name: drawing.render(figure) for figure in document.figures()}
    folder = run_dir / "report"
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
        write_whole(folder / "index.html", html_page.html(document, drawings), durable=False)
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
