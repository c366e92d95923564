"""What `bench` and workers have to agree on without importing each other."""

from orchestrator.features.bench import baselines
from orchestrator.worker.training import timings


def test_bench_clears_the_variable_that_switches_timings_off() -> None:
    assert baselines.NO_TIMINGS == timings.OFF_VARIABLE
