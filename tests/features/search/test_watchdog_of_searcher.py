"""A searcher ends with its supervisor, whatever else holds the other end of its standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_helpers import wait_until
from executor_helpers import await_gone

SEARCHER = """
import sys, time
from pathlib import Path
from orchestrator.features.search.searcher.watchdog import Watchdog

Watchdog().start(0)
Path(sys.argv[1]).touch()
time.sleep(600)
"""
SUPERVISOR = """
import subprocess, sys, time
from orchestrator.core.processes.parent_death import command_of_child

searcher = subprocess.Popen(command_of_child("searcher_alone", sys.argv[1]), start_new_session=True)
print(searcher.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def searcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "searcher_alone.py").write_text(SEARCHER)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    )


def test_a_searcher_whose_pipe_stays_open_ends_with_the_process_that_has_started_it(
    tmp_path: Path,
) -> None:
    is_watched = tmp_path / "is-watched"
    command = [sys.executable, "-c", SUPERVISOR, str(is_watched)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        try:
            wait_until(is_watched.exists, "the watchdog runs")
        finally:
            supervisor.kill()
        assert supervisor.stdin is not None
        assert not supervisor.stdin.closed
        await_gone([pid])
