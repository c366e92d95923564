"""What becomes of a declared job, by its state and its directory: the same for a run and a dry run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from supervisor_helpers import make_job

from orchestrator.core.errors import Problem
from orchestrator.core.job import (
    Cancelled,
    Cause,
    Failed,
    Paused,
    Pending,
    State,
    Succeeded,
)
from orchestrator.examination.preflight import JobVerdict
from orchestrator.ledger import JobRow
from orchestrator.server.decide import FoundDirectory, KnownJob, Training, decide

JOB = make_job("a")
LONGER = make_job("a", spec={"total_timesteps": 2000})
INTACT = FoundDirectory(exists=True, has_results=True)
SAME = Training(fingerprint=JOB.spec.fingerprint(), robot_hash=None)
FELL = Failed(cause=Cause.ERROR, message="it fell")
TOO_LARGE = Failed(cause=Cause.TOO_LARGE, message="64 cores")
LACKS_ROOM = JobVerdict(problem=Problem(where="", message="64 cores"), lacks_room=True)
INVALID = JobVerdict(problem=Problem(where="", message="no joints"))


@pytest.mark.parametrize(
    ("before", "attempts", "given", "action", "state"),
    [
        (None, 0, {}, "start", Pending()),
        (None, 0, {"verdict": LACKS_ROOM}, "none", TOO_LARGE),
        (None, 0, {"found": FoundDirectory(training=SAME, state=FELL)}, "none", FELL),
        (None, 0, {"found": FoundDirectory(training=SAME)}, "resume", Pending()),
        (Paused(), 0, {"wanted": "pause"}, "none", Paused()),
        (Pending(failures=1), 1, {}, "resume", Pending(failures=1)),
        (Pending(), 1, {"found": FoundDirectory()}, "start", Pending()),
        (Pending(), 1, {"verdict": LACKS_ROOM}, "none", TOO_LARGE),
        (TOO_LARGE, 1, {}, "resume", Pending()),
        (Succeeded(), 1, {}, "none", Succeeded()),
        (Succeeded(), 1, {"found": FoundDirectory(exists=True)}, "resume", Pending()),
        (Succeeded(), 1, {"verdict": INVALID}, "none", Succeeded()),
        (FELL, 1, {}, "none", FELL),
        (Paused(at_rung=True), 1, {}, "resume", Pending()),
        (Cancelled(), 1, {}, "none", Cancelled()),
        (Cancelled(is_undeclared=True), 1, {}, "resume", Pending()),
        (Succeeded(), 1, {"job": LONGER, "on_change": "refuse"}, "refuse", Succeeded()),
        (Succeeded(), 1, {"job": LONGER, "on_change": "restart"}, "restart", Pending()),
        (Succeeded(), 1, {"job": LONGER, "on_change": "extend"}, "extend", Pending()),
        (FELL, 1, {"job": LONGER, "on_change": "extend"}, "none", FELL),
    ],
)
def test_what_becomes_of_a_job(
    before: State | None, attempts: int, given: dict[str, Any], action: str, state: State
) -> None:
    on_change = given.pop("on_change", "refuse")
    row = None
    if before is not None:
        row = JobRow(
            job=JOB,
            fingerprint=JOB.spec.fingerprint(),
            robot_hash=None,
            state=before,
            attempts=attempts,
        )
    known = {"job": JOB, "verdict": JobVerdict(), "row": row, "found": INTACT, **given}
    decision = decide([KnownJob(**known)], on_change, Path("run"))
    fate = decision.fates["a"]
    assert (fate.action, fate.state) == (action, state)
    assert bool(decision.refusal) == (action == "refuse")
