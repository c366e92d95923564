"""What features say of a run directory, besides its jobs, while these are trained: a line each, news,
and a section of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from orchestrator.client.events import News, Note
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.feature import Feature, features
from orchestrator.core.paths import RunPaths

Cell: TypeAlias = str | float | Sequence[str] | None
"""Text, a number, or ids of jobs; None: there is no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveColumn:
    """A column of a table of a page."""

    name: str
    kind: Literal["text", "number", "steps", "value", "bar", "jobs"] = "text"
    """What its cells are: texts; numbers; numbers of env_steps, written short; returns and the like;
    numbers with a bar beside each; ids of jobs, which become links to them. Among numbers, a text
    stands as it is, such as ``"[64, 64]"``."""


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
    """What the legend calls it, which a chart of several has. A dot is called so together with its
    ``x``: ``"trial"`` makes "trial 3: 12.5"."""
    points: Sequence[tuple[float, float | None]]
    """``(x, y)``, by ``x``, which counts something: env_steps, trials. Its axis begins at 0 and has
    whole numbers. Points whose ``y`` is None or not finite are left out."""
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
    it are values of JSON: strings, numbers (no ``numpy.int64``), None, and lists or tuples of these.
    """

    title: str
    text: str
    charts: Sequence[LiveChart] = ()
    tables: Sequence[LiveTable] = ()


class RunWatch:
    """What one feature says of one run directory. Each method does nothing unless it is overridden.

    They are called while the run directory is being written, but not while that is done on another
    host, which alone may read the ledger. An :class:`OrchestratorError` or an ``OSError`` means that
    it cannot be read just now: what was said before stands, nothing else is asked, and it is looked
    at again.
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

    feature: Feature
    watch: RunWatch | None = None
    """None as long as the feature has nothing to say."""
    note: Note | None = None
    section: LiveSection | None = None
    is_put_off: bool = False
    """Whether something could not be read at the last look."""

    def look(self, paths: RunPaths) -> Sequence[News]:
        """Read on. Returns what is new since the last look."""
        assert self.feature.watch is not None
        self.is_put_off = False
        news: Sequence[News] = ()
        try:
            self.watch = self.watch or self.feature.watch(paths)
            if self.watch is not None:
                news = self.watch.look()
                self.note = self.watch.note()
        except (OrchestratorError, OSError):  # locked, or being replaced: it is read again
            self.is_put_off = True
        return news

    def look_at_section(self) -> None:
        if self.watch is None or self.is_put_off:
            return
        try:
            self.section = self.watch.section()
        except (OrchestratorError, OSError):
            self.is_put_off = True


@dataclass(slots=True)
class RunWatches:
    """What all features say of one run directory."""

    paths: RunPaths
    _watched: Sequence[_Watched] = field(init=False)
    """Of each feature that may have something to say."""

    def __post_init__(self) -> None:
        self._watched = [_Watched(feature=one) for one in features() if one.watch is not None]

    @property
    def notes(self) -> list[Note]:
        """As of the last look."""
        return [one.note for one in self._watched if one.note is not None]

    @property
    def is_put_off(self) -> bool:
        """Whether something could not be read at the last look: it is to be looked at again, even if
        nothing has changed.
        """
        return any(one.is_put_off for one in self._watched)

    def look(self) -> list[News]:
        """Read on. Returns what is new since the last look."""
        return [news for watched in self._watched for news in watched.look(self.paths)]

    def sections(self) -> list[LiveSection]:
        """What a page shows of them, as of the last look."""
        for watched in self._watched:
            watched.look_at_section()
        return [one.section for one in self._watched if one.section is not None]


def with_notes(snapshot: Snapshot, watches: RunWatches | None = None) -> Snapshot:
    """Return a snapshot with what features say of it; nothing while its supervisor runs on another
    host.
    """
    if snapshot.written is not None:
        return snapshot
    watches = watches or RunWatches(snapshot.paths)
    watches.look()
    return replace(snapshot, notes=watches.notes)
