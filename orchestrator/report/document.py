"""The content of a report, independent of its format: sections of text, tables and figures.

Texts are plain: the renderer of a web page or of Markdown escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

Tone: TypeAlias = Literal["", "good", "bad", "dim"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One of the numbers at the top."""

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
class Column:
    name: str
    numeric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str
    shown: int = 40
    """Rows beyond these are folded away; 0 folds the whole table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    """Name of its files, of letters and hyphens."""
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
class Document:
    title: str
    subtitle: str
    headlines: Sequence[Headline]
    sections: Sequence[Section]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The content of ``report.json``."""

    def figures(self) -> list[Figure]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Figure)]
