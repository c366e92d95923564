"""The elements of an MJCF with the position of each attribute in the file.

As lenient as MuJoCo's own parser, which allows ``--`` in comments, and linear in time for any
input.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

_TAG = re.compile(rb"""<([^\s<>/!?="']++)((?:[^<>"']|"[^"]*+"|'[^']*+')*+)>""")
_ATTRIBUTE = re.compile(rb"""([^\s=/"'<>]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")
_NO_TAGS = ((b"</", b">"), (b"<!--", b"-->"), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"), (b"<!", b">"))
"""How what is no opening tag begins and ends; longer beginnings first."""


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    value: str
    start: int
    """Offset in bytes of the value, without the quotes."""
    end: int


@dataclass(frozen=True, slots=True)
class Element:
    tag: str
    line: int
    attributes: tuple[Attribute, ...]

    @property
    def files(self) -> Iterator[Attribute]:
        """Attributes that name a file: ``file``, and a cube texture's ``fileright`` …
        ``fileback``.
        """
        return (
            attribute
            for attribute in self.attributes
            if attribute.name.startswith("file") and attribute.value
        )


def elements(content: bytes, tags: Collection[str]) -> Iterator[Element]:
    """The root element and all elements with one of ``tags``, in document order.

    The iteration ends where the text is not well-formed: MuJoCo, which compiles the copy next,
    reports that.
    """
    encoded_tags = {tag.encode() for tag in tags}
    at = 0
    line = 1
    counted = 0
    is_root = True
    while (at := content.find(b"<", at)) >= 0:
        closing = _end_of_no_tag(content, at)
        if closing is not None:
            at = content.find(closing, at + 2)
            if at < 0:
                return
            continue
        tag = _TAG.match(content, at)
        if tag is None:
            return
        if is_root or tag[1] in encoded_tags:
            is_root = False
            line += content.count(b"\n", counted, at)
            counted = at
            yield Element(_text(tag[1]), line, tuple(_attributes(content, *tag.span(2))))
        at = tag.end()


def _end_of_no_tag(content: bytes, at: int) -> bytes | None:
    """How what begins at ``at`` ends, if it is no opening tag; None if it is one."""
    for opening, closing in _NO_TAGS:
        if content.startswith(opening, at):
            return closing
    return None


def _attributes(content: bytes, start: int, end: int) -> Iterator[Attribute]:
    for match in _ATTRIBUTE.finditer(content, start, end):
        group = 2 if match[2] is not None else 3  # the value in double or in single quotes
        yield Attribute(
            name=_text(match[1]),
            value=_text(match[group]),
            start=match.start(group),
            end=match.end(group),
        )


def escaped(text: str) -> bytes:
    """``text`` as the value of an attribute."""
    return html.escape(text).encode("utf-8", "surrogateescape")


def _text(content: bytes) -> str:
    text = content.decode("utf-8", "surrogateescape")
    return html.unescape(text) if "&" in text else text
