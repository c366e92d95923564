"""From the measurements of a benchmark to the numbers of its report."""

from __future__ import annotations

import json
from pathlib import Path

import measurement_helpers as bench
import pytest
from measurement_helpers import collapsed, measurement, measurements, slower

from orchestrator.core.errors import UsageError
from orchestrator.features.bench.scaling_analysis import analyse

WALL = sum(bench.ALONE.values())


def test_every_figure_has_a_mean_and_an_interval(tmp_path: Path) -> None:
    found = analyse(bench.write(tmp_path, measurements("pinned", 1) + measurements("pinned", 2)))
    level = found["arms"]["pinned"]["levels"]["2"]
    for figure in (
        "throughput",
        "speedup",
        "efficiency",
        "speedup_absolute",
        "efficiency_absolute",
        "update_s",
        "wall_s",
    ):
        assert level[figure]["low"] < level[figure]["value"] < level[figure]["high"], figure
    assert level["throughput"]["value"] == pytest.approx(2000 / WALL, rel=0.01)
    assert level["speedup"]["value"] == pytest.approx(2, rel=0.01)
    assert level["efficiency"]["value"] == pytest.approx(1, rel=0.01)
    assert {name: one["value"] for name, one in level["phases"].items()} == pytest.approx(
        bench.ALONE, rel=0.01
    )
    assert level["update_s"]["value"] == pytest.approx(0.1 * 64 / 1000, rel=0.01)
    assert level["witnesses"]["run_delay_s"]["value"] == pytest.approx(0.002, rel=0.01)
    assert level["witnesses"]["runnable"]["value"] == pytest.approx(1 + 0.002 / WALL, rel=0.01)
    assert level["startup"]["first_step_s"]["value"] == 3.0
    assert found["machine"]["cpu_model"] == "Example 9000"
    json.dumps(found, allow_nan=False)


def test_the_learners_that_were_measured_are_named(tmp_path: Path) -> None:
    records = measurements("pinned", 1)
    bench.write(tmp_path / "old", records)
    found = analyse(tmp_path / "old")
    assert found["learners"] == []
    assert not any("learner" in sentence for sentence in found["how"])
    for record in records:
        record["processes"] = [{**one, "learner": "fast"} for one in record["processes"]]
    bench.write(tmp_path / "new", records)
    found = analyse(tmp_path / "new")
    assert found["learners"] == ["fast"]
    assert "PPO's arithmetic is done by the learner fast." in found["how"]


def test_efficiency_is_measured_by_the_cores_there_are(tmp_path: Path) -> None:
    shared = measurements("pinned", 4, phases=slower(2, *bench.ALONE))
    level = analyse(bench.write(tmp_path, measurements("pinned", 1) + shared))["arms"]["pinned"][
        "levels"
    ]["4"]
    assert level["ideal"] == 2
    assert level["speedup"]["value"] == pytest.approx(2, rel=0.01)
    assert level["efficiency"]["value"] == pytest.approx(1, rel=0.01)


def test_baselines_are_compared_with_one_pinned_process_as_well(tmp_path: Path) -> None:
    slow = [measurements("default", level, phases=slower(2, *bench.ALONE)) for level in (1, 2)]
    found = analyse(bench.write(tmp_path, [*measurements("pinned", 1), *slow[0], *slow[1]]))
    level = found["arms"]["default"]["levels"]["2"]
    assert level["speedup"]["value"] == pytest.approx(2, rel=0.01)
    assert level["speedup_absolute"]["value"] == pytest.approx(1, rel=0.01)
    assert level["efficiency_absolute"]["value"] == pytest.approx(0.5, rel=0.01)


def test_a_measurement_that_was_cut_off_is_a_bound_from_above(tmp_path: Path) -> None:
    found = analyse(
        bench.write(
            tmp_path, measurements("default", 1) + collapsed(2)[:3] + collapsed(2, status="cut")[3:]
        )
    )
    level = found["arms"]["default"]["levels"]["2"]
    assert level["at_most"] is True
    assert (
        level["throughput"]["low"] is level["speedup"]["low"] is level["efficiency"]["low"] is None
    )
    assert level["throughput"]["high"] > 0
    assert level["cells"] == {"ok": 3, "cut": 2, "failed": 0}
    assert "nothing to fit" in found["usl"]["default"]["warning"]


def test_a_measurement_taken_again_replaces_the_first(tmp_path: Path) -> None:
    first = measurement("pinned", 1, 0, phases=slower(9, *bench.ALONE))
    level = analyse(bench.write(tmp_path, [first, *measurements("pinned", 1)]))["arms"]["pinned"][
        "levels"
    ]["1"]
    assert level["throughput"]["n"] == 5
    assert level["throughput"]["low"] > 0.9 * 1000 / WALL


def test_a_baseline_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    failed = measurements("default", 2, status="failed", message="hopper: killed")
    found = analyse(bench.write(tmp_path, [*measurements("pinned", 1), *failed]))
    assert found["arms"]["default"] == {
        "about": None,
        "levels": {},
        "failed": {"2": ["hopper: killed"]},
    }
    assert found["cells"]["failed"] == 5


def test_a_torn_last_line_is_left_out_and_others_are_counted(tmp_path: Path) -> None:
    torn = json.dumps(measurement("pinned", 2, 0))[:200]
    found = analyse(bench.write(tmp_path, measurements("pinned", 1), tail=torn))
    assert (list(found["arms"]["pinned"]["levels"]), found["cells"]["unreadable"]) == (["1"], 0)
    found = analyse(
        bench.write(
            tmp_path, measurements("pinned", 1), tail=f'{torn}\n[1, 2]\n{{"arm": "pinned"}}\n'
        )
    )
    assert found["cells"]["unreadable"] == 3


def test_what_the_system_does_not_tell_is_none(tmp_path: Path) -> None:
    silent = measurements("pinned", 1, run_delay=None, throttled=None, first_step_s=None)
    for one in silent:
        one["processes"] = [{**process, "updates": None} for process in one["processes"]]
    level = analyse(bench.write(tmp_path, silent))["arms"]["pinned"]["levels"]["1"]
    assert level["update_s"] is level["startup"]["first_step_s"] is None
    for name in ("run_delay_s", "throttled_s", "runnable"):
        assert level["witnesses"][name] is None
    assert level["witnesses"]["cpu_s"] is not None


def test_throttling_of_the_group_is_shared_among_its_processes(tmp_path: Path) -> None:
    level = analyse(bench.write(tmp_path, measurements("pinned", 2, throttled=0.1)))["arms"][
        "pinned"
    ]["levels"]["2"]
    assert level["witnesses"]["throttled_s"]["value"] == pytest.approx(0.1, rel=0.02)


def test_a_single_repeat_pretends_no_interval(tmp_path: Path) -> None:
    levels = analyse(
        bench.write(tmp_path, measurements("pinned", 1, 1) + measurements("pinned", 2, 1))
    )["arms"]["pinned"]["levels"]
    assert (levels["2"]["speedup"]["low"], levels["2"]["speedup"]["high"]) == (None, None)


def test_a_directory_without_measurements_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a benchmark's directory"):
        analyse(tmp_path)
    with pytest.raises(UsageError, match="no measurement of this benchmark is finished yet"):
        analyse(bench.write(tmp_path, [], tail='{"arm": "pin'))
