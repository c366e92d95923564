"""``python -m benchmarks.curriculum``: returns under full pushes, with and without a curriculum."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks import curriculum, learning_figures
from benchmarks.learning_runs import Trained
from orchestrator.core.errors import UsageError

pytestmark = pytest.mark.nightly


def trained(returns: Sequence[float | None]) -> list[Trained]:
    return [
        Trained(
            seed=seed,
            env_steps=1000,
            final=50.0,
            evaluated=evaluated,
            curve=[(100, 10.0), (1000, 50.0)],
        )
        for seed, evaluated in enumerate(returns)
    ]


def test_each_curriculum_is_compared_with_full_pushes() -> None:
    better = {"full": trained([10, 11, 12, 13, 14]), "linear": trained([30, 31, 32, 33, 34])}
    text = curriculum.report({**better, "stages": trained([10, 11, 12, 13, 15])})
    full, linear, stages = text.splitlines()[-3:]
    assert "after 1,000 env_steps" in text
    assert "| full | 12 ± 2 | 10, 11, 12, 13, 14 |" in full
    assert "+12.65" in linear
    assert "| 0.008 | 0.016 |" in linear
    assert "| 1.000 | 1.000 |" in stages


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ({"linear": [1, 2]}, "full among them; found linear"),
        ({"full": [1, 2], "linear": [1]}, "linear: 1 evaluated seeds; expected at least 2"),
        ({"full": [1, 2], "linear": [1, None]}, "linear: 0 evaluated seeds"),
    ],
)
def test_what_cannot_be_compared_is_named(
    jobs: dict[str, list[float | None]], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        curriculum.report({job: trained(returns) for job, returns in jobs.items()})


def test_the_figure_shows_every_job() -> None:
    sides = [{"biped": trained([1, 2])}, {"biped": trained([2, 3])}, {"biped": trained([3, 4])}]
    name, png = learning_figures.side_by_side(
        "curriculum", "A curriculum", ["full", "linear", "stages"], sides
    )
    assert (name, png[:4]) == ("curriculum", b"\x89PNG")
