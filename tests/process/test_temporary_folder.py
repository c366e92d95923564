"""Temporary folders of killed processes are removed at the next start; those in use are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
HOLD = """
from orchestrator.core.temporary_folder import TemporaryFolder
with TemporaryFolder() as folder:
    print(folder, flush=True)
    input()
"""


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a temporary folder until its standard input is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": "."},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_of_a_killed_process_is_removed_at_the_next_start_and_no_other(tmp_path: Path) -> None:
    foreign = tmp_path / "preflight-of-another-program"
    foreign.mkdir()
    killed, left = holder(tmp_path)
    alive, used = holder(tmp_path)
    (left / "robot").mkdir()
    (left / "robot" / "mesh.stl").write_text("mesh")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.exists()
    third, new = holder(tmp_path)
    assert not left.exists()
    assert used.exists()
    assert new.exists()
    for process in (alive, third):
        process.communicate("\n")
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == [foreign]
