"""Numbers of a job file that change over the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jobfile_helpers import HOPPER, problems, resolve

from orchestrator.core.errors import SpecError
from orchestrator.core.numbers.changing_numbers import (
    END,
    TrainingMoment,
    changing_numbers,
    value_at,
)
from orchestrator.jobfile import job_table_rules

STAND = {**HOPPER, "task": "stand"}


def test_a_number_follows_the_training_or_its_stage_and_is_that_of_the_end_elsewhere() -> None:
    options = {"speed": "linear(0, 2, 0.5)", "weights": ["stages(1, 2, 3)", 7], "name": "linear"}
    assert dict(changing_numbers(options)) == {
        "speed": "linear(0, 2, 0.5)",
        "weights[0]": "stages(1, 2, 3)",
    }
    assert value_at(options, TrainingMoment(0.25, 2)) == {
        "speed": 1.0,
        "weights": [2.0, 7],
        "name": "linear",
    }
    assert value_at(options, END) == {"speed": 2.0, "weights": [3.0, 7], "name": "linear"}
    assert value_at("linear(1, 4)", TrainingMoment(0.5), whole=True) == 2


@pytest.mark.parametrize(
    ("job", "where", "message"),
    [
        (
            {"task_options": {"push_speed": "linear(0, one)"}},
            "task_options",
            "contains something other than numbers",
        ),
        (
            {"task_options": {"a": {"b": ["stages(1)"]}}},
            "task_options",
            "a.b[0]: 'stages(1)' has 1; expected a number",
        ),
        (
            {"task_options": {"push_speed": "linear(0, inf)"}},
            "task_options",
            "expected finite numbers",
        ),
        (
            {"task_options": {"push_speed": "linear(0, 1, 2e5)"}},
            "task_options",
            "the fraction of training after which",
        ),
        (
            {"task": None, "env": "Hopper-v5", "env_kwargs": {"ctrl_cost_weight": "linear(0, 1)"}},
            "env_kwargs.ctrl_cost_weight",
            "numbers change over the training in the task_options of a task",
        ),
    ],
)
def test_a_wrong_number_is_named_with_key_and_cure(
    place: Path, job: dict[str, Any], where: str, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        resolve(place, {key: value for key, value in {**STAND, **job}.items() if value is not None})
    assert any(
        place == f"jobs[0].{where}" and message in text for place, text in problems(error)
    ), problems(error)


def test_numbers_with_stages_are_refused_where_no_feature_begins_stages(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table_rules, "table_rules", dict)
    options = {"task_options": {"push_speed": "stages(0, 0.5, 1)"}}
    with pytest.raises(SpecError) as error:
        resolve(place, {**STAND, **options})
    message = (
        "has 3 stages, and no feature of this program begins them; "
        "expected linear(start, end[, fraction])"
    )
    assert problems(error) == [("jobs[0].task_options.push_speed", message)]
