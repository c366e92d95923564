"""Comparison of two run directories."""

from __future__ import annotations

import json
from pathlib import Path

import command_helpers as commands
import measurement_helpers as bench
import pytest
from measurement_helpers import collapsed, measurements, slower

from orchestrator.core.errors import UsageError
from orchestrator.features.compare.comparison import Comparison, Pair, compare_with_first
from orchestrator.features.compare.declared_settings import (
    Difference,
    merged_differences,
)


def compare(run_a: Path, run_b: Path) -> Comparison:
    return compare_with_first([run_a, run_b])[0]


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Path, Path]:
    """The same benchmark on two machines; the second is twice as fast, and does not collapse."""
    twice = {name: seconds / 2 for name, seconds in bench.ALONE.items()}
    first = [
        *measurements("pinned", 1),
        *measurements("pinned", 2),
        *measurements("default", 1),
        *collapsed(2, status="cut"),
    ]
    second = [
        record
        for arm in ("pinned", "default")
        for level in (1, 2, 4)
        for record in measurements(arm, level, phases=twice)
    ]
    bench.write(tmp_path / "old", first)
    bench.write(
        tmp_path / "new",
        second,
        versions={"torch": "2.14.0"},
        machine={"cpu_model": "Other", "capacity": 2},
    )
    return tmp_path / "old", tmp_path / "new"


def pair(found: Comparison, what: str, figure: str) -> Pair:
    (one,) = (one for one in found.pairs if (one.what, one.figure) == (what, figure))
    return one


class TestBenchmarks:
    def test_every_common_baseline_and_level_has_its_ratio_with_an_interval(
        self, machines: tuple[Path, Path]
    ) -> None:
        one = pair(compare(*machines), "pinned × 2", "throughput")
        assert one.ratio is not None
        assert one.ratio.value == pytest.approx(2, rel=0.02)
        assert one.ratio.low is not None
        assert one.ratio.high is not None
        assert 1.9 < one.ratio.low < one.ratio.value < one.ratio.high < 2.1

    def test_efficiency_is_compared_but_where_it_is_one_by_definition(
        self, machines: tuple[Path, Path]
    ) -> None:
        found = compare(*machines)
        assert pair(found, "pinned × 2", "efficiency").a.value == pytest.approx(1, rel=0.02)
        assert [one.figure for one in found.pairs if one.what == "pinned × 1"] == ["throughput"]

    def test_what_was_cut_off_gives_a_bound(self, machines: tuple[Path, Path]) -> None:
        one = pair(compare(*machines), "default × 2", "throughput")
        assert one.bound == "a"
        assert one.ratio is not None
        assert one.ratio.high is None
        assert one.a.low is None
        assert one.ratio.value > 20

    def test_other_differences_are_listed(self, machines: tuple[Path, Path]) -> None:
        found = compare(*machines)
        assert Difference("torch", "2.13.0", "2.14.0") in found.differences
        assert Difference("cpu model", "Example 9000", "Other") in found.differences
        assert found.only_b == ["pinned × 4", "default × 4"]

    def test_the_table_and_json(self, machines: tuple[Path, Path], tmp_path: Path) -> None:
        shown = commands.succeed("compare", *machines, cwd=tmp_path)
        row = next(line for line in shown.stdout.splitlines() if line.startswith("default × 2"))
        assert "≤ " in row
        assert "≥ " in row
        assert "torch: 2.13.0 → 2.14.0" in shown.stdout
        facts = json.loads(commands.invoke("compare", *machines, "--json", cwd=tmp_path).stdout)
        assert facts["kind"] == "benchmark"
        assert set(facts["pairs"][0]["ratio"]) == {"value", "low", "high", "n"}


class TestWhatCannotBeCompared:
    def test_nothing_in_common(self, tmp_path: Path) -> None:
        bench.write(tmp_path / "a", measurements("pinned", 1))
        bench.write(tmp_path / "b", measurements("default", 1, phases=slower(2, "env")))
        with pytest.raises(UsageError, match="pinned × 1"):
            compare(tmp_path / "a", tmp_path / "b")


def test_a_setting_that_differs_for_other_jobs_has_no_value_in_the_row_of_some() -> None:
    rows = [
        [Difference("n_steps", "2048", "512"), Difference("gamma", "0.99", "0.9")],
        [Difference("n_steps (cart)", "2048", "1024")],
    ]
    assert merged_differences(rows) == [
        ("n_steps", ["2048", "512", "–"]),
        ("gamma", ["0.99", "0.9", "0.99"]),
        ("n_steps (cart)", ["2048", "–", "1024"]),
    ]
