"""The command ``report``."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import pytest
from report_helpers import Trained, leave_undrawn, made, make_run_dir


@pytest.mark.nightly
def test_settings_of_the_user_do_not_matter(tmp_path: Path) -> None:
    done, _, _ = made(tmp_path / "run", [Trained()])
    first = {path.name: path.read_bytes() for path in done.page.parent.glob("*.svg")}
    (tmp_path / "matplotlibrc").write_text(
        "text.usetex: True\nsavefig.bbox: tight\nlines.linewidth: 9\n"
    )
    again = commands.give(
        *("report", "run"),
        cwd=tmp_path,
        MATPLOTLIBRC=str(tmp_path / "matplotlibrc"),
        MPLBACKEND="module://not_installed",
        MPLCONFIGDIR="/proc/none",
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert first == {path.name: path.read_bytes() for path in done.page.parent.glob("*.svg")}


def test_command_says_where_the_page_is_or_prints_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_undrawn(monkeypatch)
    make_run_dir(tmp_path / "run", [Trained(name="hopper")])
    done = commands.succeed("report", "run", cwd=tmp_path)
    assert done.stdout == "run/report/index.html\n"
    done = commands.succeed("report", "run", "--format", "md", cwd=tmp_path)
    assert "![Learning curves](<run/report/learning-curves.png>)" in done.stdout
    done = commands.invoke("report", "nowhere", cwd=tmp_path)
    assert (done.returncode, "no such run directory" in done.stderr) == (2, True)
