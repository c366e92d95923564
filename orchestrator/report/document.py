"""What a report consists of: sections of text, tables and figures.

Texts are plain: the page escapes them.
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
"""Name of a column → function that returns its cell for an item."""


def table(
    items: Iterable[Item],
    columns: Columns[Item],
    *,
    caption: str,
    text: Collection[str],
    shown: int = 40,
) -> Table:
    """Return a table with a row for each item."""
    rows = []
    for item in items:
        contents = [content_of(item) for content_of in columns.values()]
        rows.append([one if isinstance(one, Cell) else Cell(text=one) for one in contents])
    return Table(columns=list(columns), text=text, rows=rows, caption=caption, shown=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    """Name of its files, of letters and hyphens. That of a feature begins with the feature's name:
    ``"search-rungs"``."""
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
    """A section of a report, also one that a feature adds."""

    title: str
    parts: Sequence[Part] = ()
    """A section without any is not shown."""
    headlines: Sequence[Headline] = ()
    """Numbers for the top of the page."""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """What ``report.json`` has of it, as JSON types by key."""
    is_first: bool = False
    """Whether a section of a feature stands before those of the experiment, not after them."""

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A whole page."""

    title: str
    subtitle: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """The content of ``report.json``."""

    def figures(self) -> list[Figure]:
        return [
            part for section in self.sections for part in section.parts if isinstance(part, Figure)
        ]
