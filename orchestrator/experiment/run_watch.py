"""What features say of a run directory, besides its jobs, while these are trained: a line each, news,
and a section of a page.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.feature import answer, features, problems_of, untold_problems
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.control import Snapshot
from orchestrator.supervisor.events import News, Note, Reporter, View

LOOK_EVERY_S = 1.0
LOOKING_SHARE = 0.005
"""Largest share of time for reading what has changed."""

Cell: TypeAlias = str | float | Sequence[str] | None
"""Text, a number, or ids of jobs; None: there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveColumn:
    """A column of a table of a page."""

    name: str
    kind: Literal["text", "number", "steps", "value", "bar", "jobs"] = "text"
    """What its cells are: texts; numbers; numbers of env_steps, written short; returns and the like;
    numbers with a bar beside each; ids of jobs, which become links to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTable:
    """A table of a page."""

    title: str
    columns: Sequence[LiveColumn]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSeries:
    """A line of a chart, or its dots."""

    name: str
    """What the legend calls it. A dot is called so together with its ``x``: ``"trial"`` makes
    "trial 3: 12.5"."""
    points: Sequence[tuple[float, float]]
    """``(x, y)``, by ``x``."""
    is_dots: bool = False
    is_steps: bool = False
    """A value holds until the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveChart:
    """A chart of a page."""

    title: str
    """For who does not see it."""
    x: str
    y: str
    """What its axes are."""
    series: Sequence[LiveSeries]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSection:
    """A section of a page: its text, its charts, then its tables.

    Where there are charts and several tables, the first table stands beside the charts. What is in
    it are strings, numbers, None, and sequences of these.
    """

    title: str
    text: str
    charts: Sequence[LiveChart] = ()
    tables: Sequence[LiveTable] = ()


class RunWatch:
    """What one feature says of one run directory. Each method does nothing unless it is overridden.

    They are called while the run directory is being written, but not while that is done on another
    host, which alone may read the ledger. An :class:`OrchestratorError` or an ``OSError`` means that
    it cannot be read just now: what was said before stands, and it is read again. Where anything
    else is raised, the feature says nothing more.
    """

    def look(self) -> Sequence[News]:
        """Read on. Returns what is new since the last look; the first one says nothing of what was
        there before.
        """
        return ()

    def note(self) -> Note | None:
        """A line about it as it was at the last look; None where there is nothing to say."""
        return None

    def section(self) -> LiveSection | None:
        """What a page shows of it as it was at the last look; None where that is nothing."""
        return None


@dataclass(slots=True, kw_only=True)
class _Watched:
    """What one feature has said last."""

    feature: str
    watch: RunWatch
    note: Note | None = None
    section: LiveSection | None = None
    has_failed: bool = False


@dataclass(slots=True)
class RunWatches:
    """What all features say of one run directory."""

    paths: RunPaths
    _watched: dict[str, _Watched] = field(default_factory=dict, init=False)
    """By the name of the feature."""

    @property
    def notes(self) -> list[Note]:
        """As of the last look."""
        notes = [one.note for one in self._heard()]
        return [note for note in notes if note is not None]

    def look(self) -> list[News]:
        """Read on. Returns what is new since the last look."""
        self._ask()
        news: list[News] = []
        for one in self._heard():
            with self._reading(one):
                found = list(one.watch.look())
                one.note = one.watch.note()
                news += found
        return news

    def sections(self) -> list[LiveSection]:
        """What a page shows of them, as of the last look."""
        for one in self._heard():
            with self._reading(one):
                one.section = _checked(one.watch.section())
        sections = [one.section for one in self._heard()]
        return [section for section in sections if section is not None]

    def _heard(self) -> list[_Watched]:
        return [one for one in self._watched.values() if not one.has_failed]

    def _ask(self) -> None:
        """Ask the features that have had nothing to say so far whether they have now."""
        for feature in features():
            if feature.name in self._watched:
                continue
            watch = answer(feature, "watch", self.paths)
            if watch is not None:
                self._watched[feature.name] = _Watched(feature=feature.name, watch=watch)

    @contextlib.contextmanager
    def _reading(self, one: _Watched) -> Iterator[None]:
        """In the block, a feature says something."""
        one.has_failed = True
        with problems_of(one.feature, f"says nothing more of {self.paths.root}"):
            # It is locked, or being replaced: it is read again.
            with contextlib.suppress(OrchestratorError, OSError):
                yield
            one.has_failed = False


def _checked(section: LiveSection | None) -> LiveSection | None:
    """:raises TypeError: something in it cannot be sent to a page."""
    if section is not None:
        json.dumps(dataclasses.asdict(section))
    return section


class WatchReporter:
    """Passes everything on, with what features say in the view, and an event for all that is new."""

    def __init__(self, inner: Reporter, paths: RunPaths) -> None:
        self._inner = inner
        self._watches = RunWatches(paths)
        self._due = 0.0

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self._inner.event(kind, message, **facts)

    def tick(self, view: Callable[[], View]) -> None:
        began = time.monotonic()
        if began >= self._due:
            is_first = not self._due
            self.look()
            now = time.monotonic()
            # The first look reads everything, the others what is new.
            self._due = now + max(LOOK_EVERY_S, 0.0 if is_first else (now - began) / LOOKING_SHARE)
        self._inner.tick(lambda: replace(view(), notes=self._watches.notes))

    def look(self) -> Sequence[Note]:
        """Report what is new; returns what features say. To be called at its end, too."""
        for news in self._watches.look():
            self._inner.event(news.kind, news.message)
        for problem in untold_problems():
            self._inner.event("warning", problem)
        return self._watches.notes


def annotated(snapshots: Iterator[Snapshot]) -> Iterator[Snapshot]:
    """Each snapshot of one run directory with what features say of it; nothing while its supervisor
    runs on another host.
    """
    watches: RunWatches | None = None
    for snapshot in snapshots:
        if snapshot.written is not None:
            yield snapshot
            continue
        watches = watches or RunWatches(snapshot.paths)
        news = watches.look()
        yield replace(snapshot, notes=watches.notes, news=news)
