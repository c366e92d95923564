"""What a page shows, as named pieces of JSON, each with the version in which it changed last.

A viewer says which version it has, and is sent what is newer. So a viewer that reads slowly is sent
less often, and nothing is kept for it: there is no queue.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Changes:
    """What a source has found new."""

    put: dict[str, str] = field(default_factory=dict)
    """Name → JSON text that replaces what was there."""
    drop: list[str] = field(default_factory=list)
    """Names of pieces that are gone."""
    grow: dict[str, Sequence[Any]] = field(default_factory=dict)
    """Name of a list → items that are appended to it."""
    restart: set[str] = field(default_factory=set)
    """Names of lists that are emptied before."""
    is_over: bool = False
    """Whether nothing holds any more that this source has told; it has nothing else to tell."""
    rare_s: float = 0.0
    """CPU seconds of this reading that the source spends rarely, and limits itself."""

    def set(self, name: str, value: Any) -> None:
        self.put[name] = to_json(value)


def to_json(value: Any) -> str:
    """Without blanks; what a browser cannot read as a number must not be in it."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


MOST_TEXTS = 8
"""Messages of different versions that are kept for viewers to come."""


@dataclass(slots=True)
class _GrowingList:
    began: int
    """The version in which it was empty."""
    parts: list[tuple[int, str]] = field(default_factory=list)
    """Version → items that came with it, joined."""


class Board:
    """The present content of a page."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        """No other board has it, also not one of a server to come."""
        self.version = 0
        self._pieces: dict[str, tuple[int, str]] = {}
        self._dropped: dict[str, int] = {}
        self._lists: dict[str, _GrowingList] = {}
        self._texts: dict[int, str] = {}
        """What a viewer with that version is to be sent; viewers mostly have the same."""

    def apply(self, changes: Changes) -> bool:
        """Returns whether anything is new."""
        there = self._pieces.keys() | self._lists.keys()
        drop = there & set(changes.drop)
        put = {
            name: text
            for name, text in changes.put.items()
            if self._pieces.get(name, (0, ""))[1] != text
        }
        has_grown = any(items or name not in self._lists for name, items in changes.grow.items())
        if not (put or drop or changes.restart or has_grown):
            return False
        self.version += 1
        self._texts.clear()
        for name in drop:
            self._pieces.pop(name, None)
            self._lists.pop(name, None)
            self._dropped[name] = self.version
        for name, text in put.items():
            self._pieces[name] = self.version, text
            self._dropped.pop(name, None)
        for name in changes.restart | (changes.grow.keys() - self._lists.keys()):
            self._lists[name] = _GrowingList(self.version)
            self._dropped.pop(name, None)
        for name, items in changes.grow.items():
            if items:
                self._lists[name].parts.append((self.version, ",".join(map(to_json, items))))
        return True

    def since(self, version: int) -> str:
        """A JSON object with all that is newer than ``version`` (0: everything); empty where
        nothing is.
        """
        if version == self.version:
            return ""
        if version not in self._texts:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            self._texts[version] = self._message(version)
        return self._texts[version]

    def _message(self, since: int) -> str:
        put = [
            f"{to_json(name)}:{text}"
            for name, (version, text) in self._pieces.items()
            if version > since
        ]
        drop = [name for name, version in self._dropped.items() if version > since] if since else []
        grow = []
        restart = []
        for name, one in self._lists.items():
            texts = [text for version, text in one.parts if version > since]
            if one.began > since:
                restart.append(name)
            if texts:
                grow.append(f"{to_json(name)}:[{','.join(texts)}]")
        parts = [f'"put":{{{",".join(put)}}}', f'"grow":{{{",".join(grow)}}}']
        if drop:
            parts.append(f'"drop":{to_json(drop)}')
        if restart:
            parts.append(f'"restart":{to_json(restart)}')
        return f'{{"version":{self.version},{",".join(parts)}}}'
