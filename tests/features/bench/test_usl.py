"""The Universal Scalability Law: what is put into synthetic measurements comes out of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestrator.features.bench import usl

LEVELS = (1, 2, 4, 8, 16, 32)


def measurements(
    sigma: float, kappa: float, *, levels: Sequence[int] = LEVELS, noise: float = 0.0
) -> Mapping[int, list[float]]:
    rng = np.random.default_rng(0)
    return {
        cores: [
            1900 * usl.speedup(cores, sigma, kappa) * math.exp(rng.normal(0, noise))
            for _ in range(20)
        ]
        for cores in levels
    }


def fitted(throughputs: Mapping[int, Sequence[float]], capacity: int = 32) -> usl.Fit:
    found = usl.fit(throughputs, capacity)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sigma", "kappa"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.002), (0.03, 0.0005), (0.2, 0.01)]
)
def test_without_noise_sigma_and_kappa_are_found_exactly(sigma: float, kappa: float) -> None:
    found = fitted(measurements(sigma, kappa))
    assert found.sigma == pytest.approx(sigma, abs=1e-9)
    assert found.kappa == pytest.approx(kappa, abs=1e-9)
    for cores, value in found.predictions.items():
        assert value == pytest.approx(usl.speedup(cores, sigma, kappa), rel=1e-6)


def test_with_noise_they_are_found_nearly() -> None:
    found = fitted(measurements(0.05, 0.001, noise=0.02))
    assert found.sigma == pytest.approx(0.05, abs=0.01)
    assert found.kappa == pytest.approx(0.001, abs=0.0003)


def test_neither_is_ever_negative() -> None:
    found = fitted({cores: [1000.0 * cores**1.1, 1001.0 * cores**1.1] for cores in LEVELS})
    assert (found.sigma, found.kappa) == (0.0, 0.0)


def test_the_peak_is_where_one_more_core_costs_throughput() -> None:
    peak = usl.peak(0.05, 0.002)
    best = max(range(1, 200), key=lambda cores: usl.speedup(cores, 0.05, 0.002))
    assert abs(best - peak) <= 1
    assert usl.peak(0.0, 0.0) == usl.MOST


def test_only_what_is_far_away_carries_a_warning() -> None:
    assert fitted(measurements(0.05, 0.001)).warning is None
    assert fitted(measurements(0.05, 0.001, levels=(1, 2, 4)), 4).warning is not None


def test_with_two_levels_kappa_is_taken_to_be_zero() -> None:
    found = fitted(measurements(0.05, 0.0, levels=(1, 2, 4)), 2)
    assert found.levels == [1, 2]
    assert found.sigma == pytest.approx(0.05)
    assert found.kappa == 0.0
    assert found.warning is not None


@pytest.mark.parametrize(
    "throughputs", [{}, {1: [1000.0]}, {1: [1000.0], 2: []}, {2: [1900.0], 4: [1900.0]}]
)
def test_one_level_says_nothing(throughputs: Mapping[int, Sequence[float]]) -> None:
    assert usl.fit(throughputs, 2) is None


def test_levels_at_which_processes_share_cores_are_left_out() -> None:
    throughputs = {**measurements(0.05, 0.001), 64: [100.0] * 5}
    assert fitted(throughputs) == fitted(measurements(0.05, 0.001))


def test_what_is_no_throughput_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        usl.fit({1: [1000.0], 2: [0.0]}, 2)
