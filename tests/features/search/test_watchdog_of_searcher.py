"""A searcher ends with its supervisor, whatever else holds the other end of its standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_helpers import wait_until
from executor_helpers import await_gone

from orchestrator.core.files import own_files
from orchestrator.experiment.processes.side_process import SideProcess

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


def test_a_process_that_the_program_forks_does_not_hold_the_pipe_of_the_searcher(
    tmp_path: Path,
) -> None:
    is_watched = tmp_path / "is-watched"
    process = SideProcess(
        arguments=("searcher_alone", str(is_watched)),
        run_dir=tmp_path,
        log=tmp_path / "search" / "search.log",
    )
    for _ in range(2):  # it may be started again
        process.start()
        try:
            wait_until(is_watched.exists, "the watchdog runs")
            assert process._channel is not None
            number = process._channel.fileno()
            child = os.fork()
            if child == 0:
                os._exit(str(Path(f"/proc/self/fd/{number}").readlink()) != os.devnull)
            assert os.waitpid(child, 0)[1] == 0
        finally:
            process.end()
        assert number not in own_files._own, "another file may have the number now"
