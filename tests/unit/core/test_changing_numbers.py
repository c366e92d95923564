"""Numbers of a job file that change over the training."""

from __future__ import annotations

from orchestrator.core.numbers.changing_numbers import (
    END,
    TrainingMoment,
    changing_numbers,
    value_at,
)


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
