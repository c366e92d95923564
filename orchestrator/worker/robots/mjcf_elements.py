"""The elements of an MJCF as they stand in its text, with the bytes that hold each attribute.

As lenient as MuJoCo's own parser, which allows ``--`` in comments, and quick whatever junk it is given.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_TAG = re.compile(rb"""<([^\s<>/!?="']++)((?:[^<>"']|"[^"]*+"|'[^']*+')*+)>""")
_ATTRIBUTE = re.compile(rb"""([^\s=/"'<>]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")
_NO_TAGS = ((b"</", b">"), (b"<!--", b"-->"), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"), (b"<!", b">"))


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    value: str
    start: int
    """Of the value, in bytes from the file's beginning, without the quotes."""
    end: int


@dataclass(frozen=True, slots=True)
class Element:
    """One start tag of an MJCF."""

    tag: str
    line: int
    attributes: tuple[Attribute, ...]

    @property
    def files(self) -> Iterator[Attribute]:
        """``file``, and a cube texture's ``fileright`` … ``fileback``."""
        return (attribute for attribute in self.attributes if attribute.name.startswith("file") and attribute.value)


def elements(content: bytes, tags: Collection[str]) -> Iterator[Element]:
    """The root element, and all that are called one of ``tags``, in document order.

    What is not well-formed ends them quietly: MuJoCo, which compiles the copy next, says what is wrong.
    """
    wanted = {tag.encode() for tag in tags}
    at, line, counted, is_root = 0, 1, 0, True
    while (at := content.find(b"<", at)) >= 0:
        closing = next((closing for opening, closing in _NO_TAGS if content.startswith(opening, at)), None)
        if closing is not None:
            at = content.find(closing, at + 2)
            if at < 0:
                return
            continue
        tag = _TAG.match(content, at)
        if tag is None:
            return
        if is_root or tag[1] in wanted:
            is_root = False
            line += content.count(b"\n", counted, at)
            counted = at
            yield Element(_text(tag[1]), line, tuple(_attributes(content, *tag.span(2))))
        at = tag.end()


def _attributes(content: bytes, start: int, end: int) -> Iterator[Attribute]:
    for found in _ATTRIBUTE.finditer(content, start, end):
        quotes = 2 if found[2] is not None else 3
        yield Attribute(_text(found[1]), _text(found[quotes]), *found.span(quotes))


def escaped(text: str) -> bytes:
    """``text`` as the value of an attribute."""
    return html.escape(text).encode("utf-8", "surrogateescape")


def _text(content: bytes) -> str:
    text = content.decode("utf-8", "surrogateescape")
    return html.unescape(text) if "&" in text else text
