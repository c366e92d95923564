"""Processes beside a supervisor: how they end, and are started again."""

from __future__ import annotations

import contextlib
from pathlib import Path

from orchestrator.experiment.side_process import SideProcess

ENDS = ("platform",)
"""A module that prints a line and ends."""
SILENT = ("abc",)


def has_ended(process: SideProcess) -> None:
    assert process._popen is not None
    process._popen.wait()


def test_a_process_that_ended_before_it_was_told_can_be_ended(tmp_path: Path) -> None:
    process = SideProcess(arguments=ENDS, run_dir=tmp_path, log=tmp_path / "track" / "track.log")
    process.start()
    has_ended(process)
    with contextlib.suppress(BrokenPipeError):
        process.tell(b"\n")
    process.end()
    assert process.exit_code == 0


def test_a_process_that_ends_without_a_word_has_no_earlier_reason(tmp_path: Path) -> None:
    process = SideProcess(arguments=SILENT, run_dir=tmp_path, log=tmp_path / "process.log")
    process.log.write_text("the reason of the one before\n")
    process.start()
    has_ended(process)
    assert process.why_it_ended() == "its process ended with exit code 0"
