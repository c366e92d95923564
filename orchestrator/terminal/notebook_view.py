"""What a Jupyter notebook shows: a table that is updated in place while an experiment runs, and
tables of results.
"""

from __future__ import annotations

import html
import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from orchestrator.analysis.job_columns import JobLine, job_columns
from orchestrator.core.columns import with_values
from orchestrator.core.pacer import Pacer
from orchestrator.core.text import plain
from orchestrator.ledger import SummaryRow
from orchestrator.terminal.jobs_table import JobsTable, of_rows, totals
from orchestrator.terminal.run_view import DRAWING

JOBS_SHOWN = 100
MESSAGES_SHOWN = 10
SHOWN_EVENTS = ("warning", "extended", "failed", "retrying", "stopping", "waiting")
"""Kinds of the events that are shown below the table; the others are seen in it."""


def is_notebook() -> bool:
    """Whether this is a kernel of Jupyter's, which displays HTML. Imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts. Nothing in them is taken as HTML."""
    head = "".join(f"<th>{_escape(name)}</th>" for name in header)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{_escape(cell)}</td>" for cell in row)
        body += f"<tr>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class NotebookReporter:
    """A table in the output of a cell, which replaces itself about once a second."""

    def __init__(self) -> None:
        display: Any = importlib.import_module("IPython.display")  # optional, and without types
        self._shown: JobsTable | None = None
        self._note = "examining the robots"
        """Where the results will be, and what is being done before there is a table."""
        self._rows: Sequence[SummaryRow] | None = None
        """All jobs as they are recorded, when the run has ended."""
        self._messages: deque[str] = deque(maxlen=MESSAGES_SHOWN)
        self._drawing = Pacer(DRAWING)
        self._html = display.HTML
        self._handle = display.display(self._html(""), display_id=True)

    def event(self, kind: str, message: str, **facts: Any) -> None:
        if kind in ("directory", "examining"):
            self._note = message
            self._draw()
        elif kind == "ended":
            self._rows = facts["rows"]
            self._note = message
        elif kind in SHOWN_EVENTS:
            self._messages.append(f"{time.strftime('%H:%M:%S')} {message}")

    def draw(self, shown: Callable[[], JobsTable]) -> None:
        """Show the table if that is due."""
        if self._drawing.is_due():
            with self._drawing.time_block():
                self._shown = shown()
                self._draw()

    def close(self) -> None:
        """Show how it ended; the results are for the caller to show."""
        self._draw()

    def _draw(self) -> None:
        texts = [self._note]
        lines: Sequence[JobLine] = []
        if self._rows is not None:
            lines = sorted(of_rows(self._rows), key=lambda line: line["state"] == "SUCCEEDED")
        elif self._shown is not None:
            texts = totals(self._shown).plain.splitlines()
            lines = [*self._shown.running, *self._shown.next_up, *reversed(self._shown.ended)]
        parts = [f"<p>{_escape(text)}</p>" for text in texts]
        if lines:
            parts.append(_jobs(lines[:JOBS_SHOWN]))
        if len(lines) > JOBS_SHOWN:
            parts.append(f"<p>… and {len(lines) - JOBS_SHOWN:,} more jobs</p>")
        parts += [f"<pre>{_escape(message)}</pre>" for message in self._messages]
        self._handle.update(self._html("".join(parts)))


def _jobs(rows: Sequence[JobLine]) -> str:
    columns = [column for column in job_columns(rows) if column.shown != "report"]
    columns = with_values(columns, rows)
    cells = ([column.text(row) for column in columns] for row in rows)
    return html_table([column.name for column in columns], cells)


def _escape(text: str) -> str:
    return html.escape(plain(text))
