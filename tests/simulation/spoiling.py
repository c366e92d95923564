"""What other programs, or other versions of this one, do to the files of a run directory."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from orchestrator.core.paths import RunPaths
from tests.simulation.scenario import Trouble

OF_ROWS = ("spec", "state", "attempts", "figure")
"""Rows of a ledger that cannot be read: of the declaration of one job, of its state, of its last
attempt, and of its progress."""
OF_JOBS = ("job", "results")
"""The directory of a job, or its results, are gone."""
PERHAPS_READ = ("spec", "attempts")
"""Of these, those that nobody may come to read."""
KINDS = (
    "older",
    "newer",
    "program",
    "short",
    "page",
    "link",
    "job-file",
    "summary",
    *OF_ROWS,
    *OF_JOBS,
)
"""A ledger of another version, of another program, or that ends within a page; one with a page of
another content; one that is a symbolic link; the copy of the job file; the summary."""
PRAGMAS = {"older": "user_version=1", "newer": "user_version=99", "program": "application_id=7"}
STATEMENTS = {
    "spec": "UPDATE declared SET spec = '{' WHERE job_id = ?",
    "state": "UPDATE jobs SET state = 'DANCING' WHERE job_id = ?",
    "attempts": "UPDATE attempts SET cpus = 'none', record = '[' WHERE job_id = ?",
    "figure": "UPDATE jobs SET env_steps = 'many' WHERE job_id = ?",
    "no-attempt": "UPDATE jobs SET state = 'RUNNING' WHERE job_id = ? AND attempts = 0",
}
NOBODY = "nobody"
"""No job has this name."""
ODD_REQUESTS = (
    ("set", "max_parallel=many"),
    ("set", f"max_parallel={'9' * 5000}"),
    ("set", "colour=red"),
    ("promote", f"{NOBODY}=end"),
    ("promote", "j0-s0=soon"),
    ("retry", NOBODY),
    ("resume", None),
    ("stop", "somebody else"),
    ("add", "somebody else"),
    ("dance", "j0-s0"),
)


def spoil(paths: RunPaths, trouble: Trouble) -> bool:
    """Returns whether the ledger cannot be used any more: not if it is locked, and cannot be
    changed. To be called while no supervisor lives.
    """
    ledger = paths.ledger
    if trouble.what == "job-file":
        if paths.experiment.exists():
            _spoil_job_file(paths.experiment, trouble.choice)
        return False
    if trouble.what == "summary":
        paths.summary_json.write_bytes(b'[{"job_id": "j0-s0"}]' if trouble.choice % 2 else b"[")
        return False
    if trouble.what in PRAGMAS:
        return changed(ledger, f"PRAGMA {PRAGMAS[trouble.what]}")
    if trouble.what in STATEMENTS:
        is_changed = changed(ledger, STATEMENTS[trouble.what], trouble.job)
        return is_changed and trouble.what not in PERHAPS_READ
    if trouble.what == "link":
        elsewhere = paths.root.with_name("ledger-elsewhere")
        ledger.rename(elsewhere)
        ledger.symlink_to(elsewhere)
    else:
        changed(ledger, "PRAGMA wal_checkpoint(TRUNCATE)")
        for path in ledger.parent.glob(f"{ledger.name}-*"):
            path.unlink()
        content = ledger.read_bytes()
        page = content[:-100] if trouble.what == "short" else _with_another_page(content)
        ledger.write_bytes(page)
    return True


def _spoil_job_file(path: Path, number: int) -> None:
    """What `run RUN_DIR` reads is not finished, has no name, is gone, or is of another version."""
    match number % 4:
        case 0:
            path.write_bytes(b'name = "unfinished')
        case 1:
            path.write_bytes(b'order = "as-listed"\n')
        case 2:
            path.unlink()
        case 3:
            path.write_bytes(path.read_bytes() + b"colour = 1\n")


def _with_another_page(content: bytes) -> bytes:
    return content[:4096] + b"\xff" * 4096 + content[8192:]


def changed(ledger: Path, sql: str, *values: str | None) -> bool:
    """Whether another program has changed ``ledger``, which may be locked or have no such row."""
    connection = sqlite3.connect(ledger, timeout=0)
    try:
        rows = connection.execute(sql, values).rowcount  # -1 of a PRAGMA
        connection.commit()
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()
    return rows != 0


def send_odd_requests(paths: RunPaths, number: int) -> None:
    """Requests that no version of this program makes, in the ledger and in a file."""
    if not paths.ledger.exists():
        return
    for verb, job_id in ODD_REQUESTS:
        changed(paths.ledger, "INSERT INTO requests (verb, job_id) VALUES (?, ?)", verb, job_id)
    paths.requests.mkdir(exist_ok=True)
    odd = b'{"verb": "dance"}\n' if number % 2 else b"{\n"
    (paths.requests / f"9-{number}-odd.jsonl").write_bytes(odd)
