"""What a race keeps in its run directory beside its trainings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.files.atomic_files import write_whole

BUDGETS = "race.json"
"""In the race's run directory: the budgets that were declared, for each figure, each larger than
those before."""
FRESH = "race-fresh.json"
"""In the race's run directory: the seeds that no job of RUN had when they were begun. They go on to
count where RUN gets them later, as from a search that goes on."""
RESULTS = "race-results.json"
"""In the race's run directory: what was found, for each figure, as in ``--json``."""


def noted_budgets(race_dir: Path, by: str) -> list[int]:
    """Those with which seeds were trained for this figure, as they were raised."""
    return _budgets_of(by, _recorded_budgets(race_dir))


def _recorded_budgets(race_dir: Path) -> dict[str, Any]:
    """Of every figure, as they are written."""
    return run_reader.read_json_object(race_dir / BUDGETS) or {}


def _budgets_of(by: str, all_recorded: Mapping[str, Any]) -> list[int]:
    recorded = all_recorded.get(by)
    return [one for one in recorded if type(one) is int] if isinstance(recorded, list) else []


def raised(budgets: Sequence[int], budget: int) -> Sequence[int]:
    """``budgets`` with ``budget``, if that is larger than all of them."""
    return [*budgets, budget] if budget > max(budgets, default=0) else budgets


def note_budget(race_dir: Path, by: str, budget: int) -> None:
    """Record a budget that is larger than all that were declared for this figure."""
    recorded = _recorded_budgets(race_dir)
    known = _budgets_of(by, recorded)
    budgets = raised(known, budget)
    if budgets != known:
        write_whole(race_dir / BUDGETS, json.dumps({**recorded, by: budgets}) + "\n")


def noted_fresh(race_dir: Path) -> set[int]:
    recorded = (run_reader.read_json_object(race_dir / FRESH) or {}).get("seeds")
    return {one for one in recorded if type(one) is int} if isinstance(recorded, list) else set()


def note_fresh(race_dir: Path, seeds: Sequence[int]) -> None:
    """Record seeds that are fresh now."""
    noted = noted_fresh(race_dir)
    if not noted.issuperset(seeds):
        text = json.dumps({"seeds": sorted(noted.union(seeds))})
        write_whole(race_dir / FRESH, f"{text}\n")
