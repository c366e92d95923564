"""What ``logs`` shows without a job: one line per log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.analysis.job_columns import STATE_STYLE
from orchestrator.client.worker_logs import WorkerLog
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.terminal.output import bytes_text, console, show_table

LEAST_LINE = 20
"""Width of the last line of a log on a narrow terminal."""
OTHER_COLUMNS = 36
"""Width of all columns but the first and the last."""


def show(run_dir: Path, logs: Sequence[WorkerLog]) -> None:
    if not logs:
        print(f"{run_dir}: no job has been launched yet, so there are no logs")
        return
    longest = max(len(log.job_id) for log in logs)
    room = max(LEAST_LINE, console().width - longest - OTHER_COLUMNS)
    columns: Sequence[Column[WorkerLog]] = [
        Column("job", lambda log: log.job_id),
        Column("state", lambda log: log.state, style=lambda log: STATE_STYLE[log.state]),
        number_column("attempt", lambda log: str(log.attempt)),
        number_column("size", lambda log: NONE if log.size is None else bytes_text(log.size)),
        Column("last line", lambda log: log.last_line[:room]),
    ]
    show_table(
        columns, logs, below=["", f"`logs {run_dir} JOB` shows the end of one; -f follows it."]
    )
