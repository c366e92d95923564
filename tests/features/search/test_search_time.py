"""How long a search is expected to take: from its start, or what remains of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from supervisor_helpers import make_job

from orchestrator.core.job import Job
from orchestrator.examination import training_time
from orchestrator.features.search import search_time
from orchestrator.features.search.declaration.spec import SchedulerSpec, SearchSpec
from orchestrator.features.search.declaration.summary import limits
from orchestrator.features.search.search_time import DoneSoFar, Spent

STEPS = 1_000_000


def job(ranks: int = 1, **spec: object) -> Job:
    return make_job(ranks=ranks, spec={"total_timesteps": STEPS, "eval_episodes": 0, **spec})


ASHA = SchedulerSpec(kind="asha", min_env_steps=STEPS // 4, factor=4)
MEDIAN = SchedulerSpec(kind="median", min_env_steps=STEPS // 4, factor=4)
EACH_S = STEPS * training_time.STEP_S + 30 + training_time.JOB_S
OF_ASHA, OF_MEDIAN = (
    share + (1 + kept - share) * training_time.JOB_S / EACH_S
    for kept, share in ((1 / 4, 1 / 4 + 3 / 4 / 4), (1 / 2, 1 / 4 + 3 / 4 / 2))
)
"""Of a training with one rung at a quarter: its share of the env_steps, and its starts."""


def of_search(
    scheduler: SchedulerSpec | None = None, physics_s: float = 3e-5, **search: int
) -> tuple[float, float]:
    """In multiples of one training that takes as long as its example."""
    spec = SearchSpec(
        space=(),
        sampler="random",
        objectives=("eval_mean",),
        directions=("maximize",),
        **{"trials": None, **search},
    )
    time = search_time.of_search(
        [(job(), physics_s)] * 2, spec, scheduler, limits(spec, 2, STEPS), jobs_at_once=4
    )
    assert time.measured == (2 if physics_s else 0)
    return time.longest_s / EACH_S, time.with_rungs_s / EACH_S


def test_a_search_takes_its_trainings_on_all_slots_and_less_with_rungs() -> None:
    assert of_search(trials=20) == pytest.approx((10, 10)), "two seeds, four at once"
    assert of_search(ASHA, trials=20) == pytest.approx((10, 10 * OF_ASHA))
    assert of_search(MEDIAN, trials=20) == pytest.approx((10, 10 * OF_MEDIAN))
    assert of_search(ASHA, trials=18, reevaluate=2) == pytest.approx((10, 9 * OF_ASHA + 1))
    assert of_search(trials=1) == pytest.approx((1, 1)), "no less than one training"


def test_what_a_search_has_spent_is_no_longer_left() -> None:
    search = SearchSpec(
        space=(),
        sampler="random",
        objectives=("eval_mean",),
        directions=("maximize",),
        trials=8,
        max_env_steps=100,
        max_time_s=90.0,
        reevaluate=3,
    )

    def rest(**spent: float) -> tuple[float | None, ...]:
        known = replace(
            Spent(trials=5, repeated=1, raced=0, env_steps=30, elapsed_s=70.0),
            **spent,  # type: ignore[arg-type]
        )
        left = DoneSoFar(spent=known, steps_queued=0, steps_left=0).rest_of(search)
        return left.trials, left.max_env_steps, left.max_time_s, left.reevaluate

    assert rest() == (3, 70, 20.0, 2)
    assert rest(env_steps=120) == (0, 0, 20.0, 2)
    assert rest(elapsed_s=99.0) == (0, 70, 0.0, 2)
    assert rest(trials=9, repeated=4) == (0, 70, 20.0, 0)
