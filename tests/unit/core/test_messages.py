"""Messages of one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.messages import JsonLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(JsonLine):
    ones: Sequence[Inner] = ()
    by_key: Mapping[str, Inner] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def test_dataclasses_within_a_message_come_back_as_they_were() -> None:
    sent = Outer(
        ones=(Inner(name="a"), Inner(name="b\n", share=0.5)),
        by_key={"z": Inner(name="last"), "a": Inner(name="first")},
        facts={"numbers": [1, 2.5, None]},
    )
    line = sent.to_line()
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert Outer.from_line(line) == sent
