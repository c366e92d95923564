"""The analysis of ``bench --ranks``: figures relative to one rank, and the verdict that follows
from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measurement_helpers as bench
import pytest

from orchestrator.features.bench import (
    rank_analysis,
    rank_benchmark,
    ranks_section,
    samples,
    throughput_ratios,
)
from orchestrator.report.document import Table


def measured(
    way: str, number: int, throughput: float, *, repeats: int = 5, **more: Any
) -> list[dict[str, Any]]:
    """Measurements in which all processes together do ``throughput`` env_steps/s."""
    records = bench.measurements(way, number, repeats, **more)
    return [
        {**record, "throughput": throughput * (1 + 0.001 * record["repeat"])} for record in records
    ]


def verdict_of(many: float, wide: float, **more: Any) -> rank_analysis.RankVerdict:
    """The verdict on one rank with 1,000 env_steps/s, and two."""
    records = measured("allreduce", 1, 1000, **more) + measured("allreduce", 2, wide, **more)
    records += measured("jobs", 2, many, **more) + measured("subproc", 2, 1000, **more)
    ways, _ = samples.by_baseline(records, tuple(rank_benchmark.WAYS))
    verdict = rank_analysis.verdict(ways, job="dog-s0", cores=1, capacity=2)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("many", "wide", "choice", "words"),
    [
        (1990, 1500, "jobs", "many jobs are better, as long as there are that many to train"),
        (1990, 1900, "either", "many jobs and one wide job do the same work"),
        (1000, 1900, "wide", "one wide job is better"),
        (1990, 900, "jobs", "many jobs are better: it is not certain that one job is faster"),
    ],
)
def test_the_verdict_follows_from_the_figures(
    many: float, wide: float, choice: str, words: str
) -> None:
    verdict = verdict_of(many, wide)
    assert (verdict.number, verdict.choice) == (2, choice)
    assert verdict.sentences[0].startswith(f"dog-s0, on 2 cores: {words}")
    assert (
        f"2 jobs of one rank do {throughput_ratios.factor(many / wide)} [" in verdict.sentences[0]
    )
    assert "uncertain)" not in verdict.sentences[0]
    assert "SubprocVecEnv" in verdict.sentences[2]


def test_a_single_measurement_is_not_sure() -> None:
    assert "measured once, so uncertain" in verdict_of(1990, 1500, repeats=1).sentences[0]


def cut(way: str, number: int, throughput: float) -> list[dict[str, Any]]:
    return [{**one, "status": "cut"} for one in measured(way, number, throughput)]


def test_bounds_are_called_bounds(tmp_path: Path) -> None:
    """A cut reference makes a ratio a lower bound, which no figure has; a cut measurement makes it
    an upper bound."""
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench/ranks.json").write_text(
        json.dumps({**bench.plan(), "arms": list(rank_benchmark.WAYS)})
    )

    def facts_of(records: list[dict[str, Any]]) -> dict[str, Any]:
        (tmp_path / "bench/ranks.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in records)
        )
        found = rank_analysis.facts(tmp_path)
        assert found is not None
        return found

    fast, slow = (
        measured("allreduce", 2, 1750) + measured("jobs", 2, 1990),
        cut("allreduce", 1, 1000),
    )
    bound = facts_of(slow + fast)
    assert bound["ways"]["jobs"]["2"]["speedup"] is None
    assert "does at least 1.75× the env_steps/s of one rank" in bound["sentences"][1]
    above = facts_of(measured("allreduce", 1, 1000) + cut("allreduce", 2, 500))["ways"][
        "allreduce"
    ]["2"]
    assert above["at_most"]
    assert above["speedup"]["value"] == pytest.approx(0.5)
    assert above["speedup"]["low"] is None
    (section,) = ranks_section.benchmark_section(
        facts_of(measured("allreduce", 1, 1000) + cut("allreduce", 2, 500)), 2
    )
    (row,) = (
        row
        for part in section.parts
        if isinstance(part, Table)
        for row in part.rows
        if "× 2" in row[0].text
    )
    assert [cell.text.startswith("≤ ") for cell in row[1:4]] == [True, True, True]


def test_facts_compare_with_one_rank_and_give_the_share_of_all_reduce(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    folder.mkdir()
    assert rank_analysis.facts(tmp_path) is None
    assert not samples.is_benchmark(tmp_path)
    records = (
        measured("allreduce", 1, 1000) + measured("allreduce", 2, 1750) + measured("jobs", 2, 1990)
    )
    for record in records:
        record["processes"] = [
            {**process, "allreduce_s": process["wall_s"] / 5} for process in record["processes"]
        ]
    (folder / "ranks.json").write_text(
        json.dumps({**bench.plan(), "arms": list(rank_benchmark.WAYS)})
    )
    (folder / "ranks.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records) + '{"arm": "torn'
    )
    facts = rank_analysis.facts(tmp_path)
    assert facts is not None
    assert samples.is_benchmark(tmp_path)
    wide, many = facts["ways"]["allreduce"]["2"], facts["ways"]["jobs"]["2"]
    assert wide["speedup"]["value"] == pytest.approx(1.75)
    assert wide["efficiency"]["value"] == pytest.approx(0.875)
    assert wide["allreduce"]["value"] == pytest.approx(0.2)
    assert many["allreduce"] is None
    assert facts["one"]["throughput"]["value"] == pytest.approx(1002)
    assert facts["verdict"] == {"number": 2, "choice": "jobs"}
    json.dumps(facts, allow_nan=False)
