"""The loss, its phase and its causes in words: from measurements with known causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import measurement_helpers as bench
import pytest
from measurement_helpers import collapsed, measurement, measurements, slower

from orchestrator.features.bench import samples
from orchestrator.features.bench.attribution import attribute

WALL = sum(bench.ALONE.values())


@pytest.fixture
def attributed(tmp_path: Path) -> Any:
    def attribute_records(
        *groups: Iterable[Mapping[str, Any]], **plan: Any
    ) -> list[dict[str, Any]]:
        records = [record for group in groups for record in group]
        return attribute(samples.read(bench.write(tmp_path, records, **plan)))

    return attribute_records


def names(entry: Mapping[str, Any]) -> list[str]:
    return [cause["name"] for cause in entry["causes"]]


class TestTheSentence:
    def test_it_says_what_the_benchmark_is_for(self, attributed: Any) -> None:
        wall = sum(slower(60, "backward", "optimizer").values())
        four = collapsed(4, run_delay=wall * 2.1)
        budgeted = measurements("threads", 4, phases=slower(2, *bench.ALONE))
        entries = attributed(measurements("default", 1), four, measurements("threads", 1), budgeted)
        (entry,) = (entry for entry in entries if entry["arm"] == "default")
        text = entry["text"]
        assert text.startswith(
            "At 4 processes on 2 cores with default threads, 100% of the loss is in backward pass and"
        )
        assert "3.1 threads per process compete for 2 cores (6 are started" in text
        assert "A thread budget of 1 gives 6" in text
        assert entry["loss_ms"] == pytest.approx((wall - WALL) * 1e3, rel=0.05)
        assert entry["recovers"]["low"] < entry["recovers"]["value"] < entry["recovers"]["high"]

    def test_phases_are_named_until_most_of_the_loss_is_told(self, attributed: Any) -> None:
        entry = attributed(
            measurements("pinned", 1),
            measurements("pinned", 2, phases=slower(2, "env", "policy", "rest")),
        )[0]
        assert "95% of the loss is in physics and environment and policy." in entry["text"]
        assert entry["shares"]["env"] == pytest.approx(0.25 / 0.42, abs=0.03)
        assert sum(entry["shares"].values()) == pytest.approx(1)

    def test_where_nothing_is_lost_nothing_is_blamed(self, attributed: Any) -> None:
        entry = attributed(measurements("pinned", 1), measurements("pinned", 2))[0]
        assert "nothing is lost" in entry["text"]
        assert entry["causes"] == []

    def test_a_measurement_that_was_cut_off_gives_a_bound(self, attributed: Any) -> None:
        entry = attributed(
            measurements("default", 1), collapsed(2, status="cut"), measurements("threads", 2)
        )[0]
        assert entry["at_least"] is True
        assert entry["longer"]["high"] is None
        assert "take at least" in entry["text"]
        assert "gives at least" in entry["text"]

    def test_one_cut_off_before_any_iteration_has_no_phases(self, attributed: Any) -> None:
        empty = [{**one, "processes": []} for one in collapsed(2, status="cut")]
        entry = attributed(measurements("default", 1), empty)[0]
        assert "the phases of the loss are unknown" in entry["text"]
        assert "No metric explains the loss" in entry["text"]

    def test_a_baseline_cut_off_at_its_lowest_level_says_so(self, attributed: Any) -> None:
        entry = attributed(measurements("default", 1, status="cut"), collapsed(2))[0]
        assert "the loss is unknown" in entry["text"]

    def test_a_slow_start_is_told_beside_the_loss(self, attributed: Any) -> None:
        late = measurements("pinned", 2, phases=slower(2, "env"), first_step_s=6.1)
        entry = attributed(measurements("pinned", 1, first_step_s=2.9), late)[0]
        assert "Start-up takes 6.1 s instead of 2.9 s" in entry["text"]


class TestTheCauses:
    def loss(
        self, attributed: Any, level: int, factor: float = 2.0, **metrics: Any
    ) -> dict[str, Any]:
        figures = {"phases": slower(factor, *bench.ALONE), "cpu": WALL, **metrics}
        return dict(
            attributed(measurements("pinned", 1), measurements("pinned", level, **figures))[0]
        )

    def test_threads_that_outnumber_the_cores(self, attributed: Any) -> None:
        entry = attributed(measurements("default", 1, n_threads=3), collapsed(2))[0]
        assert names(entry) == ["threads"]

    def test_processes_that_share_cores(self, attributed: Any) -> None:
        entry = self.loss(attributed, 4, run_delay=WALL)
        assert names(entry) == ["sharing"]
        assert "4 processes share cores for 2: each gets 50%" in entry["text"]

    def test_both_at_once(self, attributed: Any) -> None:
        entry = attributed(measurements("default", 1), collapsed(4))[0]
        assert names(entry) == ["threads", "sharing"]

    def test_a_cgroup_limit(self, attributed: Any) -> None:
        entry = self.loss(attributed, 2, throttled=WALL, run_delay=WALL)
        assert names(entry) == ["throttling"]
        assert "cgroup limit" in entry["text"]

    def test_slower_cores(self, attributed: Any) -> None:
        entry = self.loss(attributed, 2, factor=1.3, cpu=1.3 * WALL)
        assert names(entry) == ["processor"]
        assert "30% more CPU time" in entry["text"]
        assert "memory bandwidth" in entry["text"]

    def test_other_programs(self, attributed: Any) -> None:
        entry = self.loss(attributed, 2, run_delay=WALL)
        assert names(entry) == ["others"]

    def test_waiting_for_something_else(self, attributed: Any) -> None:
        entry = self.loss(attributed, 2)
        assert names(entry) == ["waiting"]

    def test_without_metrics_no_cause_is_named(self, attributed: Any) -> None:
        first = [measurement("pinned", 1, repeat, run_delay=None) for repeat in range(5)]
        entry = attributed(
            first, measurements("pinned", 2, phases=slower(2, "env"), cpu=WALL, run_delay=None)
        )[0]
        assert names(entry) == []
        assert "No metric explains the loss" in entry["text"]


class TestIsolation:
    ALL = ("pinned", "threads", "pool-spawn-pinned")

    def test_the_thread_budget_not_pool_is_the_cause(self, attributed: Any) -> None:
        good = [measurements(arm, level) for arm in self.ALL for level in (1, 2)]
        bad = [collapsed(2, arm) for arm in ("default", "pool-spawn")]
        entry = next(one for one in attributed(*good, *bad) if one.get("thing") == "budget")
        assert entry["text"].startswith(
            "At 2 processes, the thread budget, not Pool, is the cause: threads has 12×"
        )
        assert "pool-spawn-pinned has 12×" in entry["text"]
        assert "With the thread budget, threads has 1.0" in entry["text"]
        assert [(one["before"], one["after"]) for one in entry["ratios"]] == [
            ("default", "threads"),
            ("pool-spawn", "pool-spawn-pinned"),
            ("pool-spawn-pinned", "threads"),
        ]

    def test_where_pool_costs_as_well_it_is_said(self, attributed: Any) -> None:
        pool = measurements("pool-spawn-pinned", 2, phases=slower(2, *bench.ALONE))
        entry = next(
            one
            for one in attributed(
                measurements("threads", 2), pool, collapsed(2), collapsed(2, "pool-spawn")
            )
            if "thing" in one
        )
        assert "thread budget and Pool are both causes" in entry["text"]

    def test_where_the_budget_changes_nothing_it_is_not_blamed(self, attributed: Any) -> None:
        entry = next(
            one
            for one in attributed(measurements("threads", 2), measurements("default", 2))
            if "thing" in one
        )
        assert "the thread budget makes no certain difference" in entry["text"]

    def test_affinity_is_told_by_the_baselines_that_differ_in_it(self, attributed: Any) -> None:
        entry = next(
            one
            for one in attributed(measurements("threads", 2), measurements("pinned", 2))
            if one.get("thing") == "affinity"
        )
        assert "pinned has " in entry["text"]
        assert "the throughput of threads" in entry["text"]

    def test_it_is_measured_where_every_process_has_a_core(self, attributed: Any) -> None:
        told = attributed(
            *(measurements(arm, level) for arm in ("threads", "default") for level in (1, 2, 4))
        )
        assert [one["level"] for one in told if one["kind"] == "isolation"] == [2]

    def test_what_was_measured_once_is_not_called_sure(self, attributed: Any) -> None:
        arms = [measurements("threads", 2, 1), collapsed(2)[:1]]
        entry = next(one for one in attributed(*arms) if "thing" in one)
        assert "measured once, so uncertain" in entry["text"]

    def test_where_pool_cannot_be_told_it_is_neither_blamed_nor_cleared(
        self, attributed: Any
    ) -> None:
        pool = measurements("pool-spawn-pinned", 2, noise=0.3)
        entry = next(
            one
            for one in attributed(measurements("threads", 2), pool, collapsed(2))
            if "thing" in one
        )
        assert "uncertain whether Pool is one" in entry["text"]
