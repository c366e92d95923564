"""A child process that could not be set up as asked is not left running."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from orchestrator.core.processes.child_process import spawn
from orchestrator.core.processes.procfs import is_running


def test_a_child_that_cannot_be_confined_to_its_cpus_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def refuse(pid: int, cpus: object) -> None:
        started.append(pid)
        raise OSError(errno.EINVAL, "none of these CPUs may be used")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(OSError, match="none of these CPUs may be used"):
        spawn([sys.executable, "-c", "import time; time.sleep(60)"], folder=tmp_path, cpus={0})
    assert len(started) == 1
    assert not is_running(started[0])
