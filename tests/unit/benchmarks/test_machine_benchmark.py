"""``benchmarks.machine``: what a call measures and leaves to the next one, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measurement_helpers as recorded
import pytest
import typer
from machine_helpers import TWO, Runs, section
from measurement_helpers import collapsed, machine_with, measurements

from benchmarks import machine, machine_figures
from benchmarks.machine_figures import CPU_MS, STEPS, Content
from orchestrator.cli import app
from orchestrator.core.errors import UsageError
from orchestrator.machine.topology import Machine

pytestmark = pytest.mark.nightly

BENCHES = [
    name for name, one in machine.SECTIONS.items() if one.command.startswith("orchestrator bench")
]


@pytest.mark.parametrize(
    ("here", "levels"),
    [
        (machine_with(1), [1]),
        (TWO, [1, 2]),
        (machine_with(12), [1, 2, 4, 8, 12]),
        (machine_with(16), [1, 2, 4, 8, 16]),
        (machine_with(8, siblings=2), [1, 2, 4, 8, 16]),
        (machine_with(8, siblings=2, quota=8.0), [1, 2, 4, 8]),
        (machine_with(64, quota=2.5), [1, 2]),
        (machine_with(8, memory_mib=1700), [1, 2, 4]),
    ],
)
def test_levels_end_with_the_cores_and_with_all_smt_siblings(
    here: Machine, levels: list[int]
) -> None:
    assert machine.levels(here) == levels


@pytest.mark.parametrize(
    ("about_s", "continues", "left_s", "limit_s"),
    [
        (100, True, 1000, 200),
        (100, True, 150, 150),
        (100, True, 31, 31),
        (100, True, 29, None),
        (20, True, 21, 21),
        (20, True, 19, None),
        (100, False, 101, 101),
        (100, False, 99, None),
    ],
)
def test_what_can_be_continued_takes_what_time_is_left(
    about_s: float, continues: bool, left_s: float, limit_s: float | None
) -> None:
    assert machine.time_limit(section(about_s, continues=continues), TWO, left_s) == limit_s


@pytest.mark.parametrize("name", BENCHES)
@pytest.mark.parametrize("here", [machine_with(1), machine_with(16)], ids=["1 core", "16 cores"])
def test_bench_accepts_the_options_of_each_section(
    name: str, here: Machine, tmp_path: Path
) -> None:
    arguments = machine.command(machine.SECTIONS[name], here, tmp_path / "with a space")
    assert arguments[1:4] == ["-m", "orchestrator", "bench"]
    bench = typer.main.get_group(app).commands["bench"]
    with bench.make_context("bench", arguments[4:]) as context:
        assert Path(context.params["run_dir"]).parent == tmp_path / "with a space"
        assert (machine.ROOT / context.params["jobs"]).is_file()


def test_the_next_call_measures_what_is_missing_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(
        monkeypatch,
        weak=section(1000, read=lambda _: Content({"quadruped × 1": {STEPS: [2.0, 1.0, 9.0]}})),
        whole=section(500, continues=False),
        small=section(1, continues=False),
        other=section(1, continues=False),
    )
    runs.ends = {"weak": ("stopped", "after 300 s"), "small": ("failed", "it is broken")}
    states = runs.call(tmp_path, 300.0, "weak", "whole", "small")
    assert runs.names == ["weak", "small"]
    assert states == {
        "weak": "stopped",
        "whole": "not measured",
        "small": "failed",
        "other": "not measured",
    }
    shown = (tmp_path / "machine.md").read_text()
    assert "| quadruped × 1 | 2 (1 – 9) |" in shown
    assert "Not measured: no time left." in shown
    assert "it is broken." in shown

    runs.ends = {}
    assert set(runs.call(tmp_path, 3000.0).values()) == {"complete"}
    assert runs.names == ["weak", "whole", "small", "other"]
    assert set(runs.call(tmp_path, 3000.0).values()) == {"complete"}
    assert runs.names == []


def test_results_that_cannot_be_read_fail_their_section_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damaged(_: Path) -> Content:
        raise UsageError("the file is damaged")

    runs = Runs(monkeypatch, first=section(1, read=damaged), second=section(1))
    assert runs.call(tmp_path, 100.0) == {"first": "failed", "second": "complete"}
    assert "the file is damaged" in (tmp_path / "machine.md").read_text()


def test_figures_of_two_machines_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Runs(monkeypatch, only=section(1)).call(tmp_path, 100.0)
    with pytest.raises(UsageError, match=r"machine\.physical_cores was 2, is 16.* another --out"):
        machine.begin(tmp_path / "machine.json", machine_with(16))


def test_a_bound_a_single_value_and_a_missing_one_are_told_apart() -> None:
    cases = {"a": {"x": [1.0, 3.0, 2.0], "y": [250.0]}, "b": {"x": [4.0]}}
    assert machine.table(cases, ["b"]) == [
        *(
            "|  | x | y |",
            "| --- | --- | --- |",
            "| a | 2 (1 – 3) | 250 (once) |",
            "| b | ≤ 4 (once) |  |",
            "",
        )
    ]
    assert machine.table({}, []) == []


def scaled(folder: Path, **machine_changes: Any) -> Content:
    records = [*measurements("pinned", 1), *measurements("pinned", 2), *measurements("pinned", 4)]
    records += collapsed(2, status="cut")
    facts = {
        "cpu_model": "Example 9000",
        "cpus": [0, 1],
        "physical_cores": 2,
        "capacity": 2,
        **machine_changes,
    }
    recorded.write(folder / "quadruped", records, machine=facts)
    return machine_figures.of_scaling("robot", "quadruped", folder)


def test_weak_scaling_has_speeds_efficiency_and_the_metrics_of_what_takes_the_rest(
    tmp_path: Path,
) -> None:
    content = scaled(tmp_path)
    alone, two = content.cases["robot, pinned × 1"], content.cases["robot, pinned × 2"]
    assert two["a process"] == pytest.approx([value / 2 for value in two[STEPS]])
    assert two["efficiency"] == pytest.approx(
        [b / a / 2 for b, a in zip(two[STEPS], alone[STEPS], strict=True)]
    )
    assert "efficiency" not in alone
    assert alone[CPU_MS] == pytest.approx([1e6 / value for value in alone[STEPS]], rel=0.01)
    assert content.bounds == ["robot, default × 2"]
    assert max(content.cases["robot, default × 2"]["of pinned"]) < 0.2
    assert CPU_MS not in content.cases["robot, default × 2"]
    assert any("speed-up" in note for note in content.notes)


def test_smt_siblings_are_compared_where_there_are_some(tmp_path: Path) -> None:
    (case,) = (
        scaled(tmp_path / "with", cpus=[0, 1, 2, 3]).cases.keys()
        - scaled(tmp_path / "without").cases.keys()
    )
    assert case == "robot, 4 processes on SMT siblings / 2 on cores"


def test_the_brackets_of_a_line_do_not_name_its_case(tmp_path: Path) -> None:
    line = {"what": "supervisor resident, MiB (orphan reaper: 9)", "values": [39.0]}
    (tmp_path / "supervisor.json").write_text(json.dumps({"parts": {"supervisor": [line]}}))
    assert machine_figures.of_experiment("supervisor", "cost", tmp_path).cases == {
        "supervisor resident, MiB": {"cost": [39.0]}
    }


def test_no_section_takes_the_cases_of_another(tmp_path: Path) -> None:
    of_scaling = machine_figures.of_scaling
    readers = [
        one.read
        for one in machine.SECTIONS.values()
        if getattr(one.read, "func", None) is of_scaling
    ]
    cases = []
    for reader in readers:
        recorded.write(tmp_path / reader.args[1], measurements("pinned", 1))
        cases += reader(tmp_path).cases
    assert len(cases) == len(set(cases)) == len(readers) == 3
