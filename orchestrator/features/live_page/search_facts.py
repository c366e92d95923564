"""What a page shows of a search: its leaderboard, its rungs, and what it has found so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from orchestrator.core.errors import LedgerDamagedError, OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import Ledger
from orchestrator.report.number_format import json_value
from orchestrator.report.search_data import value_text
from orchestrator.search.history import Trial
from orchestrator.search.trials import TrialReader
from orchestrator.search.watch import status_line

LEADERS = 10
MOST_DRAWN = 600
"""Values that a figure of the search has; of more trials every second, third, … is drawn, and the
best ones."""


class SearchFactsReader:
    """Reads on in the events of a search."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._reader: TrialReader | None = None

    def read(self) -> dict[str, Any] | None:
        """What there is now; None where there is no search, or it cannot be read just now.

        Of a search that is damaged there is a line that says so.
        """
        try:
            self._reader = self._reader or TrialReader.of(self._paths)
            if self._reader is None:
                return None
            ledger = Ledger.open(self._paths.ledger, read_only=True, is_sound=True)
            try:
                self._reader.update(ledger)
            finally:
                ledger.abandon()
            return facts(self._reader)
        except LedgerDamagedError as error:
            self._reader = None
            return damaged_facts(error)
        except (OrchestratorError, OSError):
            return None


def facts(reader: TrialReader) -> dict[str, Any]:
    """JSON types; see ``search.js`` for what is made of them."""
    leaders = reader.best()
    asked = reader.asked
    states = [reader.state(trial) for trial in asked]
    return {
        "line": status_line(reader, leaders[0] if leaders else None, len(leaders)),
        "objectives": list(reader.objectives) if reader.search is not None else [],
        "directions": list(reader.directions),
        "is_front": len(reader.objectives) > 1,
        "is_over": reader.history.is_over,
        "states": {state: states.count(state) for state in sorted(set(states))},
        "best": [_trial(trial) for trial in leaders[:LEADERS]],
        "rungs": [_rung(reader, asked, place, steps) for place, steps in enumerate(reader.rungs)],
        "history": _history(reader, asked),
    }


def damaged_facts(error: LedgerDamagedError) -> dict[str, Any]:
    """As :func:`facts`, of a search that cannot be read."""
    nothing: Mapping[str, Any] = {
        "objectives": [],
        "directions": [],
        "best": [],
        "rungs": [],
        "history": [],
    }
    return {
        "line": f"search: {error}",
        "is_front": False,
        "is_over": False,
        "states": {},
        **nothing,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "values": json_value(list(trial.values or ())),
        "point": {key: value_text(value) for key, value in trial.point.items()},
        "jobs": list(trial.jobs),
        "env_steps": trial.env_steps,
        "parent": trial.parent,
    }


def _rung(
    reader: TrialReader, trials: Sequence[Trial], place: int, steps: int
) -> Mapping[str, Any]:
    there = [trial for trial in trials if len(trial.reached) > place]
    values = [
        value
        for trial in there
        if (value := trial.reached[place]) is not None and math.isfinite(value)
    ]
    return {
        "env_steps": steps,
        "reached": len(there),
        "went_on": sum(trial.goal > place for trial in there),
        "waiting": sum(trial.is_waiting and len(trial.reached) == place + 1 for trial in there),
        "median": median(values) if values else None,
        "best": (min if reader.directions[0] == "minimize" else max)(values) if values else None,
    }


def _history(reader: TrialReader, trials: Sequence[Trial]) -> list[tuple[int, float]]:
    """``(number, first value)`` of finished trials, by their numbers."""
    if reader.search is None:
        return []
    ended = [trial for trial in trials if trial.values and math.isfinite(trial.values[0])]
    records, best = set(), None
    sign = -1.0 if reader.directions[0] == "minimize" else 1.0
    for trial in ended:
        value = sign * (trial.values or (0.0,))[0]
        if best is None or value > best:
            best = value
            records.add(trial.number)
    stride = max(1, math.ceil(len(ended) / MOST_DRAWN))
    return [
        (trial.number, trial.values[0])
        for place, trial in enumerate(ended)
        if trial.values and (place % stride == 0 or trial.number in records)
    ]
