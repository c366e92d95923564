"""The elements of an MJCF or URDF, read as leniently as MuJoCo reads them.

Comments may contain ``--``, ``&`` may stand alone, and a DOCTYPE is skipped. Each element knows its
line, and each attribute its place in the file. The time is linear for any input.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

_TAG = re.compile(rb"""<(/?)([^\s<>/!?="']++)((?:[^<>"']|"[^"]*+"|'[^']*+')*+)>""")
_ATTRIBUTE = re.compile(rb"""(?<![^\s"'])([^\s=/"'<>]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")
_NO_TAGS = ((b"<!--", b"-->"), (b"<![CDATA[", b"]]>"), (b"<?", b"?>"), (b"<!", b">"))
"""How other markup begins and ends; longer beginnings first."""


class MalformedXmlError(Exception):
    """The text cannot be split into tags."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}: is not well-formed XML")
        self.line = line


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    value: str
    start: int
    """Offset in bytes of the value, without the quotes."""
    end: int


@dataclass(frozen=True, slots=True)
class Tag:
    """``<name …>``, ``</name>``, or ``<name …/>``, which opens and closes."""

    name: str
    line: int
    opens: bool
    closes: bool
    _content: bytes = field(repr=False)
    _start: int
    _end: int

    @property
    def attributes(self) -> list[Attribute]:
        found = []
        for match in _ATTRIBUTE.finditer(self._content, self._start, self._end):
            group = 2 if match[2] is not None else 3  # the value in double or in single quotes
            found.append(
                Attribute(
                    _text(match[1]), _text(match[group]), match.start(group), match.end(group)
                )
            )
        return found

    def check(self) -> None:
        """:raises MalformedXmlError: a part of it is no attribute, or two have the same name."""
        rest = _ATTRIBUTE.sub(b"", self._content[self._start : self._end])
        names = [one.name for one in self.attributes]
        if rest.strip() not in (b"", b"/") or len(set(names)) < len(names):
            raise MalformedXmlError(self.line)


def tags(content: bytes) -> Iterator[Tag]:
    """All tags in document order. :raises MalformedXmlError: at the first that is none."""
    at = 0
    line = 1
    counted = 0
    while (at := content.find(b"<", at)) >= 0:
        line += content.count(b"\n", counted, at)
        counted = at
        closing = next((end for begin, end in _NO_TAGS if content.startswith(begin, at)), None)
        if closing is not None:
            end = content.find(closing, at + 2)
            if end < 0:
                raise MalformedXmlError(line)
            at = end
            continue
        tag = _TAG.match(content, at)
        if tag is None:
            raise MalformedXmlError(line)
        is_end = tag[1] == b"/"
        closes = is_end or tag[3].endswith(b"/")
        yield Tag(_text(tag[2]), line, not is_end, closes, content, *tag.span(3))
        at = tag.end()


def elements(content: bytes, names: Collection[str]) -> Iterator[Tag]:
    """The root element and all elements with one of ``names``, in document order.

    The iteration ends where the text is malformed: MuJoCo, which compiles the robot next, reports
    that.
    """
    is_root = True
    try:
        for tag in tags(content):
            if tag.opens and (is_root or tag.name in names):
                is_root = False
                yield tag
    except MalformedXmlError:
        return


def escaped(text: str) -> bytes:
    """``text`` as the value of an attribute."""
    return html.escape(text).encode("utf-8", "surrogateescape")


def _text(content: bytes) -> str:
    text = content.decode("utf-8", "surrogateescape")
    return html.unescape(text) if "&" in text else text
