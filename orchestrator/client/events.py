"""What readers of a run are told besides its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a feature says of a run directory, besides its jobs."""

    text: str
    """A line."""
    command: str = ""
    """The command that shows more of it when jobs have succeeded; its argument is the run
    directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What has come about in a run directory, as an event of its run."""

    kind: str
    message: str


class Reporter(Protocol):
    """Receives events for people and programs."""

    def event(self, kind: str, message: str, **facts: Any) -> None: ...
