"""``python -m benchmarks.followed_advice``: jobs of the advice, and what they reached."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks import followed_advice
from benchmarks.learning_runs import Trained
from orchestrator.core.errors import UsageError

pytestmark = pytest.mark.nightly


def trained(returns: Sequence[float]) -> list[Trained]:
    return [
        Trained(seed=seed, env_steps=1000, final=1.0, evaluated=one, curve=[])
        for seed, one in enumerate(returns)
    ]


def change(name: str, *, is_offered: bool) -> dict[str, Any]:
    return {
        "name": name,
        "edits": {"option.timestep": 0.01},
        "task_options": {"frame_skip": 4} if name == "second" else {},
        "remark": None,
        "speedup": {"median": 1.5, "low": 1.4, "high": 1.6},
        "is_offered": is_offered,
    }


def test_the_first_line_of_each_robot_is_followed() -> None:
    changes = [change("first", is_offered=False), change("second", is_offered=True)]
    rows = [
        {"job": "hopper-s0", "advice": {"changes": changes, "own_xml": None, "problem": None}},
        {
            "job": "Ant-s0",
            "advice": {"changes": changes[:1], "own_xml": "ant.xml", "problem": None},
        },
    ]
    jobs, remarks = followed_advice.advised_jobs(rows)
    assert list(jobs) == ["hopper-before", "hopper-after", "Ant-before"]
    text = followed_advice.job_file(jobs, remarks)
    written = {job["name"]: job for job in tomllib.loads(text)["jobs"]}
    assert written["hopper-after"]["model"] == {"option.timestep": 0.01}
    assert written["hopper-after"]["task_options"] == {"frame_skip": 4}
    assert "model" not in written["hopper-before"]
    assert "# second: speed-up 1.50 (1.40–1.60)" in text
    assert "# no change is offered" in text


def test_robots_that_learn_less_are_named() -> None:
    jobs = {
        "hopper-before": trained([10, 11, 12, 13, 14]),
        "hopper-after": trained([10, 11, 12, 13, 15]),
        "Ant-before": trained([30, 31, 32, 33, 34]),
        "Ant-after": trained([10, 11, 12, 13, 14]),
        "dog-before": trained([1, 2, 3, 4, 5]),
    }
    text, worse = followed_advice.report(jobs)
    assert worse == ["Ant"]
    assert "| hopper | 12 ± 2 | 12 ± 2 |" in text
    assert "dog" not in text
    with pytest.raises(UsageError, match="found dog-before"):
        followed_advice.report({"dog-before": jobs["dog-before"]})
