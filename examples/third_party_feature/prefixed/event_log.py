"""``RUN_DIR/events.jsonl``: what happens in a run, a line of JSON for each event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.experiment.beside_run import BesideRun


class EventLog(BesideRun):
    """Appends to ``path`` from :meth:`begin` on: before that the run directory may be missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._has_begun = False

    def event(self, kind: str, message: str, **facts: Any) -> None:
        event = {"time": time.time(), "event": kind, "message": message, **facts}
        self._lines.append(json.dumps(event, default=str) + "\n")
        self._write()

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        self._has_begun = True
        self._write()

    def _write(self) -> None:
        if not self._has_begun:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(self._lines)
        self._lines.clear()
