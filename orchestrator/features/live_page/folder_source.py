"""What the page of a folder shows: its experiments, alive or not."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.client.run_follower import marks
from orchestrator.core.pacer import Pace, Pacer
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory, run_index
from orchestrator.experiment.run_index import ListedRun, RunEntry
from orchestrator.features.live_page.board import Changes
from orchestrator.features.live_page.job_row import safe_text, tenths
from orchestrator.features.live_page.run_source import LONGEST_TEXT, page_kind

SEARCH = Pace(every_s=10.0, share=0.001, longest_s=60.0)
"""How often new run directories are looked for, also at an address that is not known yet."""


class FolderSource:
    """The run directories below ``root``; of None: those of this user on this machine. Used by
    several threads.
    """

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._entries: dict[str, RunEntry] = {}
        """Replaced as a whole, never changed."""
        self._search_pacer = Pacer(SEARCH)
        self._known: dict[str, tuple[tuple[object, ...], ListedRun]] = {}
        """What there was in each run directory when it was read, and what was found."""
        self._shown: set[str] = set()

    def run_dir(self, key: str) -> Path | None:
        """The run directory that a page names ``key``."""
        if key not in self._entries:
            self._search()
        entry = self._entries.get(key)
        return None if entry is None else Path(entry.run_dir)

    def read(self) -> Changes:
        changes = Changes()
        self._search()
        runs = {key: self._listed_run(key, entry) for key, entry in self._entries.items()}
        changes.drop = [f"run:{key}" for key in self._shown - runs.keys()]
        self._shown = set(runs)
        name = "your experiments on this machine"
        kind = "folder"
        if self.root is not None:
            name = safe_text(str(self.root.absolute()), LONGEST_TEXT)
            kind = page_kind(self.root)
        changes.set("head", {"name": name, "runs": len(runs), "kind": kind})
        for key, run in runs.items():
            changes.set(f"run:{key}", _facts(key, run))
        return changes

    def _search(self) -> None:
        """Look for run directories, unless that was done not long ago."""
        with self._lock:
            if not self._search_pacer.is_due():
                return
            with self._search_pacer.time_block():
                found: Iterable[RunEntry] = (
                    run_index.entries() if self.root is None else run_index.below(self.root)
                )
                self._entries = {key_of(entry.run_dir): entry for entry in found}

    def _listed_run(self, key: str, entry: RunEntry) -> ListedRun:
        """As it was, where nothing has changed since it was read."""
        paths = RunPaths(Path(entry.run_dir))
        found = marks(paths, run_directory.holder(paths))
        known = self._known.get(key)
        if known is not None and known[0] == found:
            return known[1]
        run = run_index.listed_run(entry)
        if run.may_pass:
            self._known.pop(key, None)
        else:
            self._known[key] = found, run
        return run


def key_of(run_dir: str) -> str:
    """Names a run directory in addresses: readable, always the same, and no path."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(run_dir).name).strip("-")[:40]
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()
    return f"{name or 'run'}-{digest[:10]}"


def _facts(key: str, run: ListedRun) -> dict[str, Any]:
    return {
        "key": key,
        "name": safe_text(run.entry.name, LONGEST_TEXT),
        "root": safe_text(run.entry.run_dir, LONGEST_TEXT),
        "state": run.state,
        "counts": dict(run.jobs),
        "supervisor": safe_text(str(run.holder), LONGEST_TEXT) if run.holder else "",
        "noted": tenths(run.entry.noted_at),
        "problem": safe_text(run.problem, LONGEST_TEXT),
    }
