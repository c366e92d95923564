"""The command ``report``."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import pytest
from report_helpers import Trained, leave_undrawn, make_run_dir


def test_command_says_where_the_page_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)
    make_run_dir(tmp_path / "run", [Trained(name="hopper")])
    done = commands.succeed("report", "run", cwd=tmp_path)
    assert done.stdout == "run/report/index.html\n"
    done = commands.invoke("report", "nowhere", cwd=tmp_path)
    assert (done.returncode, "no such run directory" in done.stderr) == (2, True)
