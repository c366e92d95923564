"""The index of this user's experiments on this machine, for `list`: one small file for each run
directory.

It is in ``$XDG_STATE_HOME/orchestrator/runs``, by default ``~/.local/state/orchestrator/runs``. A
home that several machines share holds the entries of all of them; each machine reads and removes
its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.decoding import FilePath
from orchestrator.core.errors import OrchestratorError, may_pass
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.record_file import read_record
from orchestrator.core.messages import JsonLine
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import begun_source, left_batch_jobs, run_directory
from orchestrator.experiment.run_directory import LockHolder
from orchestrator.ledger import job_figures, summary
from orchestrator.machine import provenance

if TYPE_CHECKING:
    from orchestrator.executors.kinds import LeftBatchJobs

FINISHED: Final = "finished"
ORDER = ("running", "paused", "interrupted", "unreadable", FINISHED)
MOST_ENTRIES = 10_000
"""Further entries of an index are not looked at."""
LARGEST_ENTRY_BYTES = 1 << 16
"""A larger file is no entry."""
MISSING_S = 90 * 86_400.0
"""For so long an entry stays whose run directory has gone with its folder."""
DEEPEST = 4
"""Levels of folders in which :func:`below` looks for run directories."""
MOST_FOLDERS = 20_000
"""So many folders it looks into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry(JsonLine):
    """The content of a file of the index."""

    run_dir: FilePath
    """Absolute."""
    name: str
    host: str
    noted_at: float
    """When it was run last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """An experiment as it is now."""

    entry: RunEntry
    state: str
    """One of :data:`ORDER`. ``interrupted``: no supervisor runs, and jobs remain; ``paused``: all
    that remain are."""
    holder: LockHolder | None
    jobs: Mapping[str, int] = field(default_factory=dict)
    """Number of jobs by state."""
    problem: str = ""
    """Why its jobs cannot be read."""
    may_pass: bool = False
    """Whether that may pass, although nothing changes."""
    left: LeftBatchJobs | None = None
    """Batch jobs that may still train it although no supervisor runs; only :func:`listed_runs`
    looks for them."""


def folder() -> Path:
    """:raises RuntimeError: the user has no home."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local/state") / "orchestrator/runs"


def note(run_dir: Path, name: str) -> None:
    """Enter a run directory. Where the index cannot be written, as in a home that is read-only, it
    is not listed.
    """
    entry = RunEntry(
        run_dir=str(run_dir.absolute()), name=name, host=socket.gethostname(), noted_at=time.time()
    )
    with contextlib.suppress(OSError, RuntimeError):  # a home that is missing, or read-only
        index = folder()
        index.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = hashlib.sha256(os.fsencode(f"{entry.host}\0{entry.run_dir}")).hexdigest()[:24]
        write_whole(index / f"{key}.json", entry.to_line(), durable=False)


def listed_runs() -> list[ListedRun]:
    """Experiments on this machine: running ones first, otherwise the latest first. Entries without
    one are removed.
    """
    runs = list(map(listed_run, entries()))
    unsupervised = [RunPaths(Path(run.entry.run_dir)) for run in runs if run.holder is None]
    left = left_batch_jobs.of_all(unsupervised)
    return in_order(replace(run, left=left.get(RunPaths(Path(run.entry.run_dir)))) for run in runs)


def in_order(runs: Iterable[ListedRun]) -> list[ListedRun]:
    return sorted(runs, key=lambda run: (ORDER.index(run.state), -run.entry.noted_at))


def below(folder: Path) -> Iterator[RunEntry]:
    """The run directories at and below ``folder``, whoever made them; not those within another one,
    nor hidden ones.
    """
    folders = [(folder.absolute(), 0)]
    for _ in range(MOST_FOLDERS):
        if not folders:
            return
        here, depth = folders.pop()
        try:
            if run_directory.is_run_directory(RunPaths(here)):
                yield _entry_of(here)
            elif depth < DEEPEST:
                inner = sorted(_shown_folders(here), reverse=True)  # the last one is looked at next
                folders += [(path, depth + 1) for path in inner]
        except OSError:  # it may not be read, or is gone
            continue


def _entry_of(run_dir: Path) -> RunEntry:
    """What the index would say of a run directory; the time is that of its last change."""
    return RunEntry(
        run_dir=str(run_dir),
        name=provenance.experiment_name(RunPaths(run_dir)),
        host=socket.gethostname(),
        noted_at=run_dir.stat().st_mtime,
    )


def _shown_folders(folder: Path) -> list[Path]:
    """The folders in ``folder``, but for hidden ones and links."""
    with os.scandir(folder) as found:
        return [
            Path(one.path)
            for one in found
            if one.name[0] != "." and one.is_dir(follow_symlinks=False)
        ]


def entries() -> Iterator[RunEntry]:
    """Yield what is noted in the index of this machine, and is there.

    The entry of a run directory that was removed is removed. One whose folder is missing, too, stays
    for :data:`MISSING_S`: its disk may not be mounted.
    """
    for file, entry in _noted():
        if not is_gone(Path(entry.run_dir)):
            yield entry
        elif _has_folder(entry) or time.time() > entry.noted_at + MISSING_S:
            # The home is read-only, or another command has removed it.
            with contextlib.suppress(OSError):
                file.unlink()


def missing() -> list[RunEntry]:
    """What is noted in the index of this machine and is not there now; nothing is removed."""
    return [entry for _, entry in _noted() if is_gone(Path(entry.run_dir))]


def _noted() -> Iterator[tuple[Path, RunEntry]]:
    """Yield the files of the index that belong to this machine, with their content."""
    try:
        files = sorted(folder().glob("*.json"))[:MOST_ENTRIES]
    except (OSError, RuntimeError):  # a home that is missing, or may not be read
        return
    for file in files:
        entry = read_record(RunEntry, file, most_bytes=LARGEST_ENTRY_BYTES)
        if entry is not None and entry.host == socket.gethostname():
            yield file, entry


def is_gone(run_dir: Path) -> bool:
    """Whether there is no run directory any more."""
    try:
        return not run_directory.is_run_directory(RunPaths(run_dir))
    except OSError:  # of its file system, for example; it is listed as unreadable
        return False


def _has_folder(entry: RunEntry) -> bool:
    """Whether there is the folder in which the run directory was."""
    try:
        return Path(entry.run_dir).parent.is_dir()
    except OSError:  # of its file system
        return False


def listed_run(entry: RunEntry) -> ListedRun:
    """The experiment of an entry as it is now."""
    paths = RunPaths(Path(entry.run_dir))
    holder = run_directory.holder(paths)
    try:
        jobs, state = _jobs_and_state(paths, holder)
    except (OrchestratorError, OSError) as error:
        return ListedRun(
            entry=entry,
            state="unreadable" if holder is None else "running",
            holder=holder,
            problem=str(error),
            may_pass=may_pass(error),
        )
    return ListedRun(
        entry=entry, state=state if holder is None else "running", holder=holder, jobs=jobs
    )


def _jobs_and_state(paths: RunPaths, holder: LockHolder | None) -> tuple[Mapping[str, int], str]:
    """The jobs by state, and the state of the experiment while no supervisor runs."""
    if holder is not None and holder.is_elsewhere:
        return Counter(row["state"] for row in summary.read(paths)[0]), ""
    if not paths.ledger.exists():  # its robots are examined first
        return {}, "interrupted"
    with run_directory.opened_ledger(paths, read_only=True) as ledger:
        jobs = Counter(ledger.counts())
        is_underway = begun_source.standing_of(paths, ledger) == "underway"
        at_rungs = job_figures.at_rungs(ledger)
    if holder is None and jobs["RUNNING"]:  # its supervisor was killed
        jobs["PENDING"] += jobs.pop("RUNNING")
    if not jobs or jobs["PENDING"] or jobs["RUNNING"] or is_underway:
        return jobs, "interrupted"
    # What waits at a rung no user can let go on: without what is underway it has come to its end.
    return jobs, "paused" if jobs["PAUSED"] > at_rungs else FINISHED
