"""``python -m benchmarks.machine``: its sections are real commands, with limits that hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import machine, machine_figures
from benchmarks.machine import Section

pytestmark = pytest.mark.nightly

TINY = "jobs/smoke.toml --arms pinned --levels 1 --repeats 1 --seconds 0.2 --no-strong"
SLEEPS = "timeit -n1 -r1 __import__('time').sleep(600)"


@pytest.mark.timeout(900)  # its sections are stopped before, also on a busy machine
def test_a_call_keeps_to_its_time_and_the_next_one_measures_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(out: Path) -> machine_figures.Content:
        return machine_figures.of_scaling("hopper", "weak", out)

    sections = {
        "wrong": Section("Fails", "orchestrator bench {out}/missing.toml", lambda _: 200, read),
        "endless": Section(
            "Never ends", SLEEPS, lambda _: 0.2, lambda _: machine_figures.Content()
        ),
        "weak": Section(
            "Weak", f"orchestrator bench --run-dir {{out}}/weak {TINY}", lambda _: 200, read
        ),
    }
    monkeypatch.setattr(machine, "SECTIONS", sections)
    monkeypatch.setattr(sys, "argv", ["machine", "--out", str(tmp_path), "--minutes", "15"])
    assert machine.main() == 1
    entries = json.loads((tmp_path / "machine.json").read_text())["sections"]
    assert {name: entry["state"] for name, entry in entries.items()} == {
        "wrong": "failed",
        "endless": "stopped",
        "weak": "complete",
    }
    assert "wrong.log" in entries["wrong"]["message"]
    assert "missing.toml" in (tmp_path / "wrong.log").read_text()
    assert entries["weak"]["cases"]["hopper, pinned × 1"][machine_figures.STEPS][0] > 0
    assert "Missing: wrong, endless." in capsys.readouterr().out

    monkeypatch.setattr(sys, "argv", ["machine", "--out", str(tmp_path), "--only", "weak"])
    assert machine.main() == 1
    again = json.loads((tmp_path / "machine.json").read_text())["sections"]
    assert again == entries, "what is complete was measured again"
    assert "| hopper, pinned × 1 |" in (tmp_path / "machine.md").read_text()
