"""What is said of a child process that has ended."""

from __future__ import annotations

import signal

from orchestrator.core.exit_codes import KILLS, how_it_ended


def test_only_a_kill_may_come_from_the_kernel_for_lack_of_memory() -> None:
    by_kernel = {
        number for number in signal.valid_signals() if "memory runs out" in how_it_ended(-number)
    }
    assert by_kernel == {signal.SIGKILL}
    for number in KILLS:
        assert "another process" in how_it_ended(-number)
