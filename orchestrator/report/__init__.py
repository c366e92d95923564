"""The report of a run directory: a page, its figures and all numbers, in ``RUN_DIR/report``.

It writes nothing else, and works while the run directory is being written. Features add sections to
it; a directory that is no experiment has theirs alone. matplotlib, Jinja2 and numpy are imported when
a report is made.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from orchestrator.analysis import run_reader
from orchestrator.core.errors import UsageError
from orchestrator.core.feature import answers
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import RunPaths
from orchestrator.report.document import Document, Section

__all__ = ["compose", "make"]


def compose(run_dir: Path) -> Document:
    """Return the report of ``run_dir`` without writing it.

    :raises OrchestratorError: there is nothing to report.
    """
    added: list[Section] = [
        section for _, sections in answers("report_sections", run_dir) for section in sections
    ]
    made_at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if added and not RunPaths(run_dir).ledger.exists():
        return document(_title(run_dir), made_at, added, {"made_at": made_at})
    from orchestrator.report import experiment, sections

    facts = experiment.read(run_dir)
    about, *others, machine = sections.of_experiment(facts, run_dir)
    first = [section for section in added if section.is_first]
    last = [section for section in added if not section.is_first]
    subtitle = "Experiment, still running: results so far" if facts["running"] else "Experiment"
    return document(
        _title(run_dir),
        f"{subtitle} · {made_at}",
        [about, *first, *others, *last, machine],
        {"made_at": made_at, **experiment.to_json(facts)},
    )


def document(
    title: str, subtitle: str, sections: list[Section], numbers: dict[str, object]
) -> Document:
    """Return a page with ``sections`` and with all of their headlines and numbers."""
    for section in sections:
        numbers = {**numbers, **section.numbers}
    return Document(
        title=title,
        subtitle=subtitle,
        headlines=[one for section in sections for one in section.headlines],
        sections=[section for section in sections if section.parts],
        numbers=numbers,
    )


def _title(run_dir: Path) -> str:
    """Return the name of the folder, with that above it where it is only a number: ``evolve/0``."""
    from orchestrator.report.number_format import one_line

    folder = run_dir.resolve()
    name = f"{folder.parent.name}/{folder.name}" if folder.name.isdecimal() else folder.name
    return one_line(name)


def make(run_dir: Path) -> Path:
    """Write ``RUN_DIR/report`` and return the path of its page: ``index.html``, ``report.json``, a PNG
    and an SVG of each figure.

    Figures of an earlier report that are no longer part of it are removed; other files there stay.

    :raises OrchestratorError: there is nothing to report, or ``RUN_DIR/report`` cannot be written.
    """
    from orchestrator.report import drawing, html_page
    from orchestrator.report.number_format import json_value

    content = compose(run_dir)
    drawings = {figure.name: drawing.render(figure) for figure in content.figures()}
    captions = {figure.name: figure.caption for figure in content.figures()}
    numbers = json_value({**content.numbers, "figures": captions})
    folder = run_dir / "report"
    try:
        folder.mkdir(exist_ok=True)
        earlier = (run_reader.read_json_object(folder / "report.json") or {}).get("figures")
        for name in earlier if isinstance(earlier, dict) else ():
            if name not in drawings and name.replace("-", "").isalnum():
                (folder / f"{name}.png").unlink(missing_ok=True)
                (folder / f"{name}.svg").unlink(missing_ok=True)
        for name, drawn in drawings.items():
            write_whole(folder / f"{name}.png", drawn.png, durable=False)
            write_whole(folder / f"{name}.svg", drawn.svg, durable=False)
        text = json.dumps(numbers, indent=1, ensure_ascii=True, allow_nan=False)
        write_whole(folder / "report.json", text + "\n", durable=False)
        write_whole(folder / "index.html", html_page.html(content, drawings), durable=False)
    except OSError as error:
        advice = "free disk space or fix its permissions, or copy the run directory to a place where you may write"
        raise UsageError(f"{folder}: cannot be written ({error.strerror}); {advice}") from error
    return folder / "index.html"
