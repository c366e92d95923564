"""What is left of an attempt whose record cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

END = """
import sys
from pathlib import Path
from orchestrator.core.exit_record import ExitRecord
from orchestrator.worker.__main__ import exit_with
exit_with(ExitRecord(code=1, message="it fell", traceback="in user.py, line 3"), Path(sys.argv[1]))
"""


def test_the_log_has_the_reason_where_the_record_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("a file in the place of the folder")
    path = tmp_path / "attempts/exit.json"
    ended = subprocess.run(
        [sys.executable, "-c", END, str(path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "in user.py, line 3" in ended.stderr
    assert f"worker: it fell ({path}: cannot be written: Not a directory)" in ended.stderr
