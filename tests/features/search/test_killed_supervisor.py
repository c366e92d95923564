"""The processes of a search end with their supervisor, also before they have imported anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from command_helpers import wait_until
from executor_helpers import await_gone

REPOSITORY = Path(__file__).parents[3]
HANGS = """
import os, pathlib, time
pathlib.Path(__file__).with_name(f"importing-{os.getpid()}").touch()
time.sleep(600)
"""
"""A package whose import does not end."""
SUPERVISOR = """
import os, sys, time
from pathlib import Path
from orchestrator.experiment.side_process import SideProcess

folder = Path(sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]
for name in ("searcher", "sampler_child"):
    arguments = [f"orchestrator.features.search.searcher.{name}", sys.argv[1]]
    process = SideProcess(arguments=arguments, run_dir=folder, log=folder / f"{name}.log")
    process.start()
    print(process._popen.pid, flush=True)
time.sleep(600)
"""


def test_what_still_imports_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    for package in ("numpy", "sqlite3"):
        (tmp_path / f"{package}.py").write_text(HANGS)
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(supervisor.stdout.readline()) for _ in range(2)]
        try:
            for pid in pids:
                wait_until((tmp_path / f"importing-{pid}").exists, f"process {pid} imports")
        finally:
            supervisor.kill()
    try:
        await_gone(pids)
    finally:
        for pid in pids:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)
