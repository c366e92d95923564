"""Rules of tables of jobs that features add."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.robot_sources import RobotFormat
from orchestrator.jobfile import job_table_rules
from orchestrator.jobfile.job_table_rules import JobTableRules
from orchestrator.keys.problems import Problems


def test_settings_of_a_robot_that_its_feature_cannot_make_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def falls(*_: object) -> Any:
        raise ValueError("the knee fell off")

    rules = JobTableRules(settings=falls, robot_settings=falls)
    monkeypatch.setattr(job_table_rules, "table_rules", lambda: {"sketch": rules})
    monkeypatch.setattr(job_table_rules, "_is_written", lambda *_: True)
    sketch = RobotFormat(
        name="sketch", title="x", suffix=".sketch", root="sketch", worker="nowhere"
    )
    merged = {"sketch": {"paper": "a4"}}
    problems = Problems()
    made = job_table_rules.robot_settings(merged, sketch, Path(), "jobs[0]", problems)
    assert made == {}
    (problem,) = map(str, problems.in_order())
    assert "jobs[0].sketch: the feature of this table cannot read it: ValueError" in problem
