"""Processes beside a supervisor end with it in whatever way it ends, also before they have imported
anything."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from parent_death_helpers import assert_all_end_with

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.processes import parent_death

SUPERVISOR = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from orchestrator.core.paths import JobPaths
from orchestrator.experiment.policy_process import PolicyProcess
from orchestrator.examination.examining_process import Child
from orchestrator.experiment.side_process import SideProcess

folder = Path(sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]
beside = SideProcess(arguments=["numpy"], run_dir=folder, log=folder / "process.log")
beside.start()
job = JobPaths(folder)
drawing = [f"orchestrator.worker.rendering.{name}" for name in ("play", "stills")]
requests = [SimpleNamespace(module=name, arguments=lambda: []) for name in drawing]
processes = [PolicyProcess(job, request, is_quiet=True) for request in requests]
pids = [beside._popen.pid, *(one.pid for one in processes), (examination := Child())._popen.pid]
print(*pids, flush=True)
time.sleep(600)
"""


def test_what_still_imports_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    assert_all_end_with(SUPERVISOR, tmp_path, number=4)


def test_a_process_whose_parent_ended_before_it_could_ask_for_the_signal_ends_at_once() -> None:
    command = parent_death.command_of_child("platform")
    command[command.index(str(os.getpid()))] = "1"
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.ORPHANED, b"")
