"""What a page shows of one job beyond its row, read when somebody opens it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.client.run_follower import Mark, mark
from orchestrator.core import job_parts
from orchestrator.core.errors import UNAVAILABLE, OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.timing_columns import Iteration
from orchestrator.experiment import run_directory
from orchestrator.features.live_page.job_row import brief, safe_text
from orchestrator.features.live_page.run_source import LONGEST_TEXT, attempt_values
from orchestrator.ledger import AttemptRow, SummaryRow, job_figures, summary

LONGEST_TRACEBACK = 16_000
MOST_TIMES = 120
"""Points of a curve over time; of more iterations, several are one point."""
MOST_KEPT = 50
"""Jobs whose files are not read again, by whoever looks, until they have changed."""
FACTS = (
    "xml",
    "task",
    "algo",
    "learner",
    "learner_reason",
    "seed",
    "ranks",
    "eval_mean",
    "eval_length",
    "eval_finding",
    "ep_rew_mean_first",
    "queue_s",
    "import_s",
    "first_step_s",
    "wall_s",
    "checkpoint_s",
    "eval_s",
    "cpu_s",
    "max_rss_mib",
    "weights_sha256",
    "divergences",
    "waits_for",
)
"""Columns of the summary that are listed."""


def row(run_dir: Path, job_id: str) -> SummaryRow | None:
    """The row of a job; None where there is none of exactly that name, or the ledger cannot be
    read.

    :raises LedgerUnavailableError, DiskFullError: it cannot be read just now.
    """
    found = _read(run_dir, job_id, with_attempts=False)
    return None if found is None else found[0]


def _read(
    run_dir: Path, job_id: str, *, with_attempts: bool
) -> tuple[SummaryRow, Sequence[AttemptRow]] | None:
    """Likewise, with its attempts where they are known.

    The whole ledger is not examined for damage, which whoever reads all rows of it does.
    """
    paths = RunPaths(run_dir)
    try:
        holder = run_directory.holder(paths)
        if holder is not None and holder.is_elsewhere:
            rows, _ = summary.read(paths)
            return next(((one, ()) for one in rows if one["job_id"] == job_id), None)
        with run_directory.opened_ledger(paths, read_only=True, is_sound=True) as ledger:
            if not job_figures.figures(ledger, [job_id]):
                return None
            attempts = ledger.attempts(job_id) if with_attempts else []
            return ledger.summary_of(job_id), attempts
    except UNAVAILABLE:
        raise
    except (OrchestratorError, OSError):  # the ledger is being replaced, or is of another host
        return None


def details(run_dir: Path, job_id: str) -> dict[str, Any] | None:
    """JSON types; None as :func:`row`, which also says what is raised."""
    read = _read(run_dir, job_id, with_attempts=True)
    if read is None:
        return None
    found, attempts = read
    job = RunPaths(run_dir).job(job_id)
    values: dict[str, Any] = dict(found)
    listed = (*FACTS, *job_parts.column_names())
    known = {name: values[name] for name in listed if values.get(name) is not None}
    return {
        "id": job_id,
        "state": found["state"],
        "attempts": found["attempts"],
        "message": _safe_or_none(found["message"]),
        "traceback": _safe_or_none(found["traceback"]),
        "facts": {
            name: safe_text(value, LONGEST_TEXT) if isinstance(value, str) else brief(value)
            for name, value in known.items()
        },
        "measures": {
            safe_text(name, LONGEST_TEXT): brief(value)
            for name, value in (found["measures"] or {}).items()
        },
        "curve": _curve(job.progress_csv, mark(job.progress_csv)),
        "times": _times(job.timings_csv, mark(job.timings_csv)),
        "ended": [attempt_values(one) for one in attempts],
    }


def _safe_or_none(text: str | None) -> str | None:
    return None if text is None else safe_text(text, LONGEST_TRACEBACK)


@lru_cache(maxsize=MOST_KEPT)
def _curve(path: Path, _mark: Mark) -> Sequence[tuple[int, float | int | None]]:
    return [(int(steps), brief(value)) for steps, value in run_reader.learning_curve(path)]


@lru_cache(maxsize=MOST_KEPT)
def _times(path: Path, _mark: Mark) -> Sequence[tuple[int, float | int | None, float | int | None]]:
    return times(run_reader.iterations(path))


def times(rows: Sequence[Iteration]) -> list[tuple[int, float | int | None, float | int | None]]:
    """``(env_steps, env_steps per second, share of waiting for a CPU)``, each over a few
    iterations.
    """
    stride = max(1, math.ceil(len(rows) / MOST_TIMES))
    points: list[tuple[int, float | int | None, float | int | None]] = []
    before = 0.0
    for first in range(0, len(rows), stride):
        some = rows[first : first + stride]
        wall_s = sum(one.wall_s for one in some)
        end = some[-1].env_steps
        delays = [one.run_delay_s for one in some if one.run_delay_s is not None]
        rate = None
        delay = None
        # The first point has no rate: where its env_steps began is not in the table.
        if wall_s > 0 and points and end > before:
            rate = brief((end - before) / wall_s)
        if wall_s > 0 and len(delays) == len(some):
            delay = brief(sum(delays) / wall_s)
        points.append((int(end), rate, delay))
        before = end
    return points
