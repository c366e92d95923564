"""The content of a report, independent of its format: sections of text, tables and figures.

Texts are plain: the renderer of a web page or of Markdown escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

Item = TypeVar("Item")
Tone: TypeAlias = Literal["", "good", "bad", "dim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One of the numbers at the top of a page."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    text: str
    tone: Tone = ""
    image: str | None = None
    """A ``data:`` URL; ``text`` then describes the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text: Collection[str]
    """Names of the columns that hold text; the others hold numbers."""
    caption: str
    shown: int = 40
    """Number of rows that are not folded; 0 folds the whole table."""


Columns: TypeAlias = dict[str, Callable[[Item], str | Cell]]
"""Name → the column's cell for an item."""


def table(
    items: Iterable[Item],
    columns: Columns[Item],
    *,
    caption: str,
    text: Collection[str],
    shown: int = 40,
) -> Table:
    """A table with a row for each item."""

    def row(item: Item) -> list[Cell]:
        contents = [content_of(item) for content_of in columns.values()]
        return [
            content if isinstance(content, Cell) else Cell(text=content) for content in contents
        ]

    rows = list(map(row, items))
    return Table(columns=list(columns), text=text, rows=rows, caption=caption, shown=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    """Name of its files, of letters and hyphens. Where a feature adds it to a report, it begins with
    the name of the feature: ``"search-rungs"``."""
    title: str
    caption: str
    draw: Callable[[], Drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    sentences: Sequence[str]
    """A single sentence makes a paragraph, several make a list."""
    tone: Tone = ""


Part: TypeAlias = Figure | Table | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    parts: Sequence[Part]

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().split())


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJobs:
    """The jobs that are shown by themselves, where there are too many for that."""

    job_ids: Collection[str]
    which: str
    """What they are, as the end of a sentence: ``"those of the best trials"``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedSections:
    """What a feature adds to a report."""

    name: str
    """Key of :attr:`facts` in ``report.json``."""
    facts: Any
    """JSON types."""
    sections: Sequence[Section]
    is_first: bool = False
    """Whether the sections stand before those of the run directory, and not after them."""
    headlines: Sequence[Headline] = ()
    """Before the others."""
    shown_jobs: ShownJobs | None = None
    """The jobs that the sections of the experiment show, where there are too many for that; None: all.
    Where several features name some, all of these are shown."""
    lists_points: bool = False
    """Whether the sections list the jobs with their points. Then the report has no section of robots
    and none of what was varied."""
    has_compared: bool = False
    """Whether they compare the run directory with the others that the report was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    subtitle: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The content of ``report.json``."""

    def figures(self) -> list[Figure]:
        return [
            part for section in self.sections for part in section.parts if isinstance(part, Figure)
        ]
