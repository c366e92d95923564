"""Files of ``benchmarks.machine`` are compared like run directories."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
import pytest
from machine_helpers import Runs, section

from benchmarks.machine_figures import CPU_MS, STEPS, Content
from orchestrator.core.errors import UsageError
from orchestrator.features.compare.comparison import compare_with_first


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The second is twice as fast, and takes half of the CPU time."""
    for name, factor in (("old", 1.0), ("new", 2.0)):
        values = {STEPS: [100.0 * factor, 101.0 * factor], CPU_MS: [10 / factor, 10.1 / factor]}
        content = Content(
            {"robot × 1": values, "robot × 2": {STEPS: [50.0]}},
            ["robot × 2"] if name == "old" else [],
        )
        (tmp_path / name).mkdir()
        Runs(monkeypatch, weak=section(1, read=lambda _, content=content: content)).call(
            tmp_path / name, 100.0
        )
    return tmp_path / "old/machine.json", tmp_path / "new/machine.json"


def test_compare_reads_two_machines(machines: tuple[Path, Path], tmp_path: Path) -> None:
    (found,) = compare_with_first(machines)
    ratios = {
        (pair.what, pair.figure): (pair.ratio, pair.less_is_better, pair.bound)
        for pair in found.pairs
    }
    speed, cost = ratios["robot × 1", STEPS], ratios["robot × 1", CPU_MS]
    assert speed[0] is not None
    assert cost[0] is not None
    assert (speed[0].value, speed[1:]) == (pytest.approx(2), (False, ""))
    assert (cost[0].value, cost[1:]) == (pytest.approx(0.5), (True, ""))
    assert ratios["robot × 2", STEPS][2] == "a"
    shown = commands.succeed("compare", *machines, cwd=tmp_path)
    assert "robot × 1" in shown.stdout


def test_another_file_is_not_compared(machines: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(UsageError, match=r"other\.json"):
        compare_with_first([machines[0], other])
