"""Looking at a run directory and asking things of its supervisor, from another process."""

from __future__ import annotations

import codecs
import difflib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.core.errors import UsageError
from orchestrator.core.job import TERMINAL, Cancelled, Pending, move
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count
from orchestrator.experiment import run_directory
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.ledger import Ledger, Request, SummaryRow, summary

FOLLOW_EVERY_S = 0.3
CHUNK = 1 << 16
PAST = {"cancel": "cancelled", "retry": "retried"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    paths: RunPaths
    rows: Sequence[SummaryRow]
    """As in ``summary.json``, straight from the ledger."""
    holder: LockHolder | None

    @property
    def over(self) -> bool:
        return self.holder is None or all(row["state"] in TERMINAL for row in self.rows)


def status(run_dir: Path) -> Snapshot:
    """:raises UsageError: when it is not a run directory or its ledger is damaged."""
    paths = run_directory.existing(run_dir)
    holder = run_directory.holder(paths)
    if holder is not None and not paths.ledger.exists():
        return Snapshot(paths=paths, rows=[], holder=holder)  # it is examining the robots
    ledger = Ledger.open(paths.ledger, read_only=True)
    try:
        return Snapshot(paths=paths, rows=ledger.summary(), holder=holder)
    finally:
        ledger.abandon()


def find(run_dir: Path, job: str) -> JobPaths:
    """The directory of a job given by its name or the beginning of it.

    :raises UsageError: for a name that fits none or several, and a job that has never been launched.
    """
    snapshot = status(run_dir)
    job_id = _resolve(snapshot, [job])[0]
    paths = snapshot.paths.job(job_id)
    if not paths.spec.exists():
        raise UsageError(f"{run_dir}: {job_id} has not been launched yet ({_row(snapshot, job_id)['state']})")
    return paths


def log(run_dir: Path, job: str, *, follow: bool, lines: int, attempt: int | None, rank: int = 0) -> Iterator[str]:
    """The text of a worker's log, piece by piece; with ``follow`` until the job is over.

    :param lines: how many of the last lines to begin with; 0 for all.
    """
    snapshot = status(run_dir)
    job_id = _resolve(snapshot, [job])[0]
    attempts, ranks = _row(snapshot, job_id)["attempts"], _row(snapshot, job_id)["ranks"]
    if rank >= ranks:
        raise UsageError(f"{job_id} has {count(ranks, 'rank')}, numbered from 0; there is no rank {rank}")
    if attempt is not None and not 0 <= attempt < attempts:
        raise UsageError(f"{job_id} has {attempts} attempts, numbered from 0; there is no attempt {attempt}")
    if not attempts and not follow:
        raise UsageError(f"{job_id} has not been launched yet; -f waits for it")
    number = attempt if attempt is not None else max(0, attempts - 1)
    position = None
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while True:
        path = snapshot.paths.job(job_id).attempt(number).log_of(rank)
        # Read before the state is asked for, written after: what comes in between is read next time.
        over = _row(snapshot, job_id)["state"] in TERMINAL or snapshot.holder is None
        if path.exists():
            with path.open("rb") as file:
                file.seek(_tail(file.fileno(), lines) if position is None else position)
                while chunk := file.read(CHUNK):
                    yield decoder.decode(chunk)
                position = file.tell()
        if not follow or over:
            yield decoder.decode(b"", final=True)
            return
        time.sleep(FOLLOW_EVERY_S)
        snapshot = status(run_dir)
        latest = max(0, _row(snapshot, job_id)["attempts"] - 1)
        if attempt is None and latest != number:
            number, position = latest, 0
            yield f"--- attempt {latest} ---\n"


def _tail(descriptor: int, lines: int) -> int:
    """Offset at which the last ``lines`` lines begin; reads from the end, however long the file."""
    if lines == 0:
        return 0
    position = os.fstat(descriptor).st_size
    ends_whole = position > 0 and os.pread(descriptor, 1, position - 1) == b"\n"
    # The newline before the first wanted line is looked for; one at the very end begins no line.
    left = lines + 1 if ends_whole else lines
    while position > 0:
        start = max(0, position - CHUNK)
        block = os.pread(descriptor, position - start, start)
        at = len(block)
        while left and (at := block.rfind(b"\n", 0, at)) >= 0:
            left -= 1
        if left == 0:
            return start + at + 1
        position = start
    return 0


def stop(run_dir: Path, jobs: Sequence[str]) -> str:
    """Ask for a stop, or cancel ``jobs``. Returns what was done, in a sentence."""
    return _ask(run_dir, jobs, "cancel") if jobs else _stop_all(run_dir)


def _stop_all(run_dir: Path) -> str:
    paths = run_directory.existing(run_dir)
    holder = run_directory.holder(paths)
    if holder is None:
        return f"{run_dir}: no supervisor at work; nothing to stop"
    while not paths.ledger.exists() and run_directory.holder(paths) is not None:
        time.sleep(FOLLOW_EVERY_S)  # it is still examining the robots
    if not paths.ledger.exists():
        return f"{run_dir}: its supervisor has just ended; nothing to stop"
    _with_ledger(paths, [Request(verb="stop", job_id=None)])
    return f"{run_dir}: asked {holder} to stop; workers checkpoint and leave"


def retry(run_dir: Path, jobs: Sequence[str]) -> str:
    """Put failed and cancelled jobs (all, or ``jobs``) back. Returns what was done, in a sentence."""
    return _ask(run_dir, jobs, "retry")


def _ask(run_dir: Path, jobs: Sequence[str], verb: Literal["cancel", "retry"]) -> str:
    snapshot = status(run_dir)
    takes = ("FAILED", "CANCELLED") if verb == "retry" else ("PENDING", "RUNNING")
    named = _resolve(snapshot, jobs) if jobs else [row["job_id"] for row in snapshot.rows]
    states = {job_id: _row(snapshot, job_id)["state"] for job_id in named}
    chosen = [job_id for job_id in named if states[job_id] in takes]
    if jobs and len(chosen) < len(named):
        wrong = ", ".join(f"{job_id} is {states[job_id]}" for job_id in named if job_id not in chosen)
        raise UsageError(f"{run_dir}: {wrong}; only what is {' or '.join(takes)} can be {PAST[verb]}")
    if not chosen:
        return f"{run_dir}: no job has failed or was cancelled"
    said = f"{run_dir}: {count(len(chosen), 'job')} ({', '.join(chosen[:10])}{' …' if chosen[10:] else ''})"
    if snapshot.holder is not None:
        _with_ledger(snapshot.paths, [Request(verb=verb, job_id=job_id) for job_id in chosen])
        return f"{said}: asked its supervisor to {'cancel' if verb == 'cancel' else 'try again'}"
    with run_directory.claim(run_dir) as paths:
        _move(paths, chosen, takes, Pending() if verb == "retry" else Cancelled())
    return f"{said}: {'put back; the same `run` command goes on with them' if verb == 'retry' else 'cancelled'}"


def _move(paths: RunPaths, chosen: Sequence[str], takes: Sequence[str], new: Pending | Cancelled) -> None:
    ledger = Ledger.open(paths.ledger)
    try:
        for row in ledger.jobs():
            if row.job.job_id in chosen and row.state.name in takes:
                ledger.set_state(row.job.job_id, move(row.job.job_id, row.state, new))
        ledger.commit()
        summary.write(paths, ledger.summary())
    finally:
        ledger.close()


def _with_ledger(paths: RunPaths, requests: Sequence[Request]) -> None:
    ledger = Ledger.open(paths.ledger)
    try:
        ledger.add_requests(requests)
    finally:
        ledger.abandon()


def _row(snapshot: Snapshot, job_id: str) -> SummaryRow:
    for row in snapshot.rows:
        if row["job_id"] == job_id:
            return row
    raise UsageError(f"{snapshot.paths.root}: {job_id} is not there any more")


def _resolve(snapshot: Snapshot, names: Sequence[str]) -> list[str]:
    """Full job ids for names or beginnings of them.

    :raises UsageError: for a name that fits none or several.
    """
    known = [row["job_id"] for row in snapshot.rows]
    found = []
    for name in names:
        fits = [name] if name in known else [job_id for job_id in known if job_id.startswith(name)]
        if len(fits) != 1:
            near = fits or difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:5]
            what = "fits several jobs" if fits else "no such job; there is"
            raise UsageError(f"{snapshot.paths.root}: {name}: {what}: {', '.join(near[:10])}")
        found += fits
    return found
