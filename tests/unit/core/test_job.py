"""The states of a job and the only moves between them."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.core.errors import IllegalTransition
from orchestrator.core.job import (
    LEGAL,
    TERMINAL,
    Attempt,
    Cancelled,
    Cause,
    Failed,
    Paused,
    Pending,
    Running,
    State,
    Succeeded,
    move,
)

ATTEMPT = Attempt(job_id="a-s0", number=0, cpus=(0,), gpus=(), pid=1, pid_start=2.0, started_at=3.0)
STATES: dict[str, State] = {
    "PENDING": Pending(),
    "RUNNING": Running(attempt=ATTEMPT),
    "PAUSED": Paused(),
    "SUCCEEDED": Succeeded(),
    "FAILED": Failed(cause=Cause.ERROR, message="why"),
    "CANCELLED": Cancelled(),
}
MOVES = {
    ("PENDING", "RUNNING"),
    ("PENDING", "FAILED"),
    ("PENDING", "CANCELLED"),
    ("PENDING", "PAUSED"),
    ("RUNNING", "PAUSED"),
    ("PAUSED", "PENDING"),
    ("PAUSED", "CANCELLED"),
    ("PAUSED", "PAUSED"),
    ("RUNNING", "SUCCEEDED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "CANCELLED"),
    ("RUNNING", "PENDING"),
    ("FAILED", "PENDING"),
    ("CANCELLED", "PENDING"),
    ("SUCCEEDED", "PENDING"),
}
PAIRS = list(itertools.product(STATES, STATES))


@pytest.mark.parametrize(("old", "new"), [pair for pair in PAIRS if pair in MOVES])
def test_a_legal_move_gives_the_new_state(old: str, new: str) -> None:
    assert move("a-s0", STATES[old], STATES[new]) is STATES[new]


@pytest.mark.parametrize(("old", "new"), [pair for pair in PAIRS if pair not in MOVES])
def test_an_illegal_move_raises_and_names_job_and_states(old: str, new: str) -> None:
    with pytest.raises(IllegalTransition):
        move("a-s0", STATES[old], STATES[new])


def test_every_state_has_its_row_in_the_table_and_success_is_final_unless_the_job_is_extended() -> (
    None
):
    assert LEGAL.keys() == STATES.keys()
    assert LEGAL["SUCCEEDED"] == {"PENDING"}
    assert set(TERMINAL) == STATES.keys() - {"PENDING", "RUNNING", "PAUSED"}
