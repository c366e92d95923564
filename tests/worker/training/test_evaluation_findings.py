"""What an evaluation shows of a policy besides its return."""

from __future__ import annotations

import pytest
from worker_helpers import spec as make_spec

from orchestrator.worker.training.after_training import evaluation_finding


@pytest.mark.parametrize(
    ("spec", "mean", "length", "distance", "finding"),
    [
        ({}, 4.2, 5.0, 0.1, "episodes last 5 of 1,000 steps"),
        ({"task_options": {"max_episode_steps": 20}}, 4.2, 5.0, 0.1, None),
        ({}, 980.0, 1000.0, -0.04, "distance_m is -0.04"),
        ({}, 1500.0, 1000.0, 20.0, None),
        ({}, -12.0, 1000.0, 0.0, None),
        ({"task": "gymnasium:Hopper-v5"}, 980.0, 1000.0, 0.1, "longer, or lower healthy_reward"),
        ({"task": "gymnasium:Swimmer-v5"}, 9.0, 1000.0, 0.1, "train longer"),
        ({"task": "track"}, 400.0, 500.0, 0.1, "distance_m is 0.1"),
        ({"task": "track"}, 400.0, 500.0, 8.0, None),
        ({"task": "reach"}, 10.0, 100.0, 0.01, None),
        ({"task": "stand"}, 4.2, 5.0, None, "episodes last 5 of 250 steps"),
        ({"task": None, "env": "Hopper-v5"}, 4.2, 5.0, None, None),
    ],
)
def test_short_episodes_and_a_policy_that_stands_still_are_findings(
    spec: dict[str, object],
    mean: float,
    length: float,
    distance: float | None,
    finding: str | None,
) -> None:
    found = evaluation_finding(
        make_spec(**{"task": "forward", **spec}), mean, length, {"distance_m": distance}
    )
    assert (found is None) == (finding is None)
    assert (finding or "") in (found or "")
    assert "Swimmer" not in str(spec) or "healthy_reward" not in str(found), "it has no such option"
