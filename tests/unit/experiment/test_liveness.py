"""How long a process counts as silent or stopped: only time in which its watcher has looked."""

from __future__ import annotations

import pytest

from orchestrator.experiment.processes.liveness import MOST_A_LOOK_S, Liveness


def test_silence_adds_up_between_looks_and_ends_with_a_sign_of_life() -> None:
    liveness = Liveness(looked_at=100.0)
    for now in (100.5, 101.0, 101.25):
        liveness.look(now, has_beaten=False, is_stopped=False)
    assert liveness.silent_s == pytest.approx(1.25)
    liveness.look(101.5, has_beaten=True, is_stopped=False)
    assert liveness.silent_s == 0.0


def test_the_time_in_which_the_watcher_did_not_look_does_not_count() -> None:
    liveness = Liveness(looked_at=0.0)
    liveness.look(3600.0, has_beaten=False, is_stopped=True)
    assert liveness.silent_s == liveness.stopped_s == MOST_A_LOOK_S


def test_a_process_counts_as_stopped_only_as_long_as_it_is() -> None:
    liveness = Liveness(looked_at=0.0)
    for now in (0.5, 1.0):
        liveness.look(now, has_beaten=False, is_stopped=True)
    assert liveness.stopped_s == pytest.approx(1.0)
    liveness.look(1.5, has_beaten=False, is_stopped=False)
    assert liveness.stopped_s == 0.0
    assert liveness.silent_s == pytest.approx(1.5)
