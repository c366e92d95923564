"""What features say of a run directory, besides its jobs, while these are trained: a line each, news,
and a section of a page.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.feature import Feature, ask, features, problems_of, untold_problems
from orchestrator.core.paths import RunPaths
from orchestrator.experiment.control import Snapshot
from orchestrator.supervisor.events import News, Note, Reporter, View

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
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

    feature: Feature
    watch: RunWatch | None = None
    """None as long as the feature has nothing to say."""
    note: Note | None = None
    section: LiveSection | None = None
    has_failed: bool = False


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
        notes = [watched.note for watched in self._working()]
        return [note for note in notes if note is not None]

    def look(self) -> list[News]:
        """Read on. Returns what is new since the last look."""
        news: list[News] = []
        for watched in self._working():
            with self._asking(watched):
                if watched.watch is None:
                    watched.watch = ask(watched.feature, "watch", self.paths)
                if watched.watch is None:
                    continue
                found = [_checked(one, News) for one in watched.watch.look()]
                note = watched.watch.note()
                watched.note = None if note is None else _checked(note, Note)
                news += found
        return news

    def sections(self) -> list[LiveSection]:
        """What a page shows of them, as of the last look."""
        for watched in self._working():
            if watched.watch is None:
                continue
            with self._asking(watched):
                section = watched.watch.section()
                watched.section = None if section is None else _checked_section(section)
        sections = [watched.section for watched in self._working()]
        return [section for section in sections if section is not None]

    def _working(self) -> list[_Watched]:
        return [watched for watched in self._watched if not watched.has_failed]

    @contextlib.contextmanager
    def _asking(self, watched: _Watched) -> Iterator[None]:
        """In the block, a feature says something."""
        has_said = False
        with problems_of(watched.feature.name, f"says nothing more of {self.paths.root}"):
            # It is locked, or being replaced: it is read again.
            with contextlib.suppress(OrchestratorError, OSError):
                yield
            has_said = True
        watched.has_failed = not has_said


def _checked(value: Any, kind: type[T]) -> T:
    """:raises TypeError: it is not of this kind, or a field of it has another type."""
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}; this is {value!r}")
    from pydantic import ValidationError

    validator = _validator(kind)  # type: ignore[arg-type]  # classes can be hashed
    try:
        validator.validate_python(dataclasses.asdict(value))  # type: ignore[call-overload]
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise TypeError(
            f"{place} of its {kind.__name__} is {first['input']!r}: {first['msg']}"
        ) from None
    return value


@functools.cache
def _validator(kind: type[Any]) -> TypeAdapter[Any]:
    """Pydantic is imported only where there is something to check."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _checked_section(section: Any) -> LiveSection:
    """:raises TypeError: it is none, or a page cannot draw it."""
    checked = _checked(section, LiveSection)
    for table in checked.tables:
        for row in table.rows:
            if len(row) != len(table.columns):
                raise TypeError(
                    f"a row of the table {table.title!r} has {len(row)} cells, and the table"
                    f" {len(table.columns)} columns"
                )
    return checked


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
