"""The processes of a search end with their supervisor, also before they have imported anything."""

from __future__ import annotations

from pathlib import Path

from parent_death_helpers import assert_all_end_with

SUPERVISOR = """
import os, sys, time
from pathlib import Path
from orchestrator.experiment.side_process import SideProcess

folder = Path(sys.argv[1])
os.environ["PYTHONPATH"] = sys.argv[1]
pids = []
for name in ("searcher", "sampler_child"):
    arguments = [f"orchestrator.features.search.searcher.{name}", sys.argv[1]]
    process = SideProcess(arguments=arguments, run_dir=folder, log=folder / f"{name}.log")
    process.start()
    pids.append(process._popen.pid)
print(*pids, flush=True)
time.sleep(600)
"""


def test_what_still_imports_ends_with_a_killed_supervisor(tmp_path: Path) -> None:
    assert_all_end_with(SUPERVISOR, tmp_path, number=2, hanging=("numpy", "sqlite3"))
