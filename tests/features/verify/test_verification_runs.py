"""What a verification does while its trainings run: it counts neighbours, kills, and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.paths import RunPaths
from orchestrator.features.verify import verification_runs
from orchestrator.features.verify.verification_runs import Kill
from orchestrator.server.ledger import EventRow


def event(kind: str, job_id: str, **facts: Any) -> EventRow:
    return EventRow(id=1, at=0.0, kind=kind, job_id=job_id, message=f"{job_id} {kind}", facts=facts)


def test_a_case_is_killed_once_and_the_neighbours_when_all_cases_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(verification_runs, "kill_group", killed.append)
    stops: list[bool] = []
    warnings: list[str] = []
    paths = RunPaths(tmp_path)
    watch = verification_runs._Watch(
        paths=paths,
        cases=frozenset({"a-s0", "b-s0"}),
        kills={"a-s0": Kill(iterations=2, delay_s=0.0)},
        warn=warnings.append,
        stop=lambda: stops.append(True),
    )
    for number, job_id in enumerate(("a-s0", "b-s0", "neighbour-0")):
        watch.event(event("launched", job_id, pid=number))
    table = paths.job("a-s0").progress_csv
    table.parent.mkdir(parents=True)
    table.write_text("header\n1\n")
    watch.kill_due()
    assert killed == []
    table.write_text("header\n1\n2\n")
    watch.kill_due()
    watch.event(event("retrying", "a-s0"))
    watch.event(event("launched", "a-s0", pid=7))
    watch.kill_due()
    assert killed == [0], "the second attempt is left alone"
    watch.event(event("failed", "neighbour-0"))
    watch.event(event("succeeded", "a-s0"))
    assert (stops, warnings) == ([], ["neighbour-0 failed"])
    watch.event(event("failed", "b-s0"))
    assert stops == [True]
    assert watch.neighbours == {"a-s0": 2, "b-s0": 2, "neighbour-0": 2}
