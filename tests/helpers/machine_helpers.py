"""``benchmarks.machine`` with sections that measure nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measurement_helpers import machine_with

from benchmarks import machine
from benchmarks.machine import Section
from benchmarks.machine_figures import Content

TWO = machine_with(2)


def no_figures(_: Path) -> Content:
    return Content()


def section(
    about_s: float, *, continues: bool = True, read: Callable[[Path], Content] = no_figures
) -> Section:
    return Section("A section", "it", lambda _: about_s, read, continues)


class Runs:
    """Takes the place of the commands: notes which are run, and ends as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **sections: Section) -> None:
        self.names: list[str] = []
        self.ends: dict[str, tuple[str, str]] = {}
        monkeypatch.setattr(machine, "SECTIONS", sections)
        monkeypatch.setattr(machine, "run", self._run)

    def _run(self, arguments: list[str], log: Path, limit_s: float) -> tuple[str, str]:
        self.names.append(log.stem)
        return self.ends.get(log.stem, ("complete", ""))

    def call(self, out: Path, seconds: float, *only: str) -> dict[str, Any]:
        """Returns the states of the sections."""
        self.names.clear()
        document = machine.begin(out / "machine.json", TWO)
        chosen = only or machine.SECTIONS.keys()
        machine.measure_missing(document, chosen, TWO, out, time.monotonic() + seconds)
        entries = json.loads((out / "machine.json").read_text())["sections"]
        return {name: entry["state"] for name, entry in entries.items()}
