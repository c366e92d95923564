"""A feature that says of every run directory that it makes its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from orchestrator.core.feature import Feature
from orchestrator.experiment import begun_source
from orchestrator.experiment.begun_source import BegunSource


class Begun(BegunSource):
    noun = "draw"

    def __init__(self, *, is_underway: bool = True) -> None:
        self._is_underway = is_underway

    @property
    def is_underway(self) -> bool:
        return self._is_underway

    @property
    def makes_jobs(self) -> bool:
        return True

    def has_succeeded(self) -> bool:
        return False

    def shown_jobs(self) -> Sequence[str]:
        return ["b"]


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Let a feature say this of every run directory; an exception is raised."""

    def answers(*_: object) -> Iterator[tuple[Feature, Any]]:
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            yield Feature(name="draw", about="x."), answer

    monkeypatch.setattr(begun_source, "answers", answers)
