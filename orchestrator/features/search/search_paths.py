"""What a run directory has of a search, besides the files of every run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.paths import Below


@dataclass(frozen=True)
class SearchPaths:
    root: Path
    """The run directory."""

    declaration = Below("search/declared.json")
    """The content of its job file, and what was given on the command line."""
    events = Below("search/events.sqlite3")
    """What the search has done: it is resumed from that."""
    shown_jobs = Below("search/shown.json")
    """Ids of the jobs that pages show by themselves; missing until the search has come to its end."""
    sampler = Below("search/sampler.pickle")
    """The sampler's state, so that a resumed search need not tell it everything again."""
    stopped = Below("search/stopped.txt")
    """Why the search has stopped before its end; missing while it goes on."""
    log = Below("search/search.log")
    """Output of the searcher, and of a sampler of the user's own."""
