"""The Universal Scalability Law: what is put into synthetic measurements comes out of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from orchestrator.analysis.statistics import Estimate
from orchestrator.features.bench import usl

LEVELS = (1, 2, 4, 8, 16, 32)


def measurements(
    sigma: float,
    kappa: float,
    *,
    levels: Sequence[int] = LEVELS,
    repeats: int = 5,
    noise: float = 0.02,
    seed: int = 0,
) -> Mapping[int, list[float]]:
    rng = np.random.default_rng(seed)
    return {
        cores: [
            1900 * usl.speedup(cores, sigma, kappa) * math.exp(rng.normal(0, noise))
            for _ in range(repeats)
        ]
        for cores in levels
    }


def fitted(throughputs: Mapping[int, Sequence[float]], capacity: int = 32) -> usl.Fit:
    found = usl.fit(throughputs, capacity)
    assert found is not None
    return found


def holds(interval: Estimate, truth: float) -> bool:
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= truth <= interval.high


@pytest.mark.nightly
class TestKnownParameters:
    @pytest.mark.parametrize(
        ("sigma", "kappa"), [(0.0, 0.0), (0.05, 0.0), (0.0, 0.002), (0.03, 0.0005), (0.2, 0.01)]
    )
    def test_without_noise_they_are_found_exactly(self, sigma: float, kappa: float) -> None:
        found = fitted(measurements(sigma, kappa, noise=0.0))
        assert found.sigma.median == pytest.approx(sigma, abs=1e-9)
        assert found.kappa.median == pytest.approx(kappa, abs=1e-9)
        for cores, one in found.predictions.items():
            assert one.median == pytest.approx(usl.speedup(cores, sigma, kappa), rel=1e-6)

    def test_with_noise_they_are_found_nearly(self) -> None:
        found = fitted(measurements(0.05, 0.001, repeats=20))
        assert found.sigma.median == pytest.approx(0.05, abs=0.01)
        assert found.kappa.median == pytest.approx(0.001, abs=0.0003)

    @pytest.mark.parametrize(
        ("sigma", "kappa", "repeats", "levels"),
        [
            (0.05, 0.001, 5, (1, 2, 4)),
            pytest.param(0.05, 0.001, 2, LEVELS, marks=pytest.mark.nightly),
            pytest.param(0.05, 0.001, 5, LEVELS, marks=pytest.mark.nightly),
            pytest.param(0.15, 0.004, 5, LEVELS, marks=pytest.mark.nightly),
        ],
    )
    def test_the_intervals_hold_them(
        self, sigma: float, kappa: float, repeats: int, levels: Sequence[int]
    ) -> None:
        truth = {
            "sigma": sigma,
            "kappa": kappa,
            "32": usl.speedup(32, sigma, kappa),
            "peak": usl.peak(sigma, kappa),
        }
        held = dict.fromkeys(truth, 0)
        tries = 200
        for seed in range(tries):
            found = fitted(measurements(sigma, kappa, levels=levels, repeats=repeats, seed=seed))
            intervals = {
                "sigma": found.sigma,
                "kappa": found.kappa,
                "32": found.predictions[32],
                "peak": found.peak,
            }
            for name, interval in intervals.items():
                held[name] += holds(interval, truth[name])
        assert {
            name: count for name, count in held.items() if not 0.9 <= count / tries <= 0.99
        } == {}

    def test_neither_is_ever_negative(self) -> None:
        better_than_ideal = {cores: [1000.0 * cores**1.1, 1001.0 * cores**1.1] for cores in LEVELS}
        found = fitted(better_than_ideal)
        assert (found.sigma.low, found.kappa.low) == (0.0, 0.0)


class TestWhatFollows:
    def test_the_peak_is_where_one_more_core_costs_throughput(self) -> None:
        peak = usl.peak(0.05, 0.002)
        assert peak == pytest.approx(math.sqrt(0.95 / 0.002))
        best = max(range(1, 200), key=lambda cores: usl.speedup(cores, 0.05, 0.002))
        assert abs(best - peak) <= 1

    @pytest.mark.parametrize(
        ("sigma", "kappa"), [(0.05, 0.001), (0.2, 0.0), (0.0, 0.004), (1.0, 0.0)]
    )
    def test_the_last_core_worth_it_adds_half_and_the_next_one_less(
        self, sigma: float, kappa: float
    ) -> None:
        last = usl.worth(sigma, kappa)
        if last > 1:
            assert usl.speedup(last, sigma, kappa) - usl.speedup(last - 1, sigma, kappa) >= 0.5
        assert usl.speedup(last + 1, sigma, kappa) - usl.speedup(last, sigma, kappa) < 0.5

    def test_perfect_scaling_has_no_end(self) -> None:
        found = fitted(measurements(0.0, 0.0, noise=0.0))
        assert (found.peak.median, found.worth.median) == (usl.MOST, usl.MOST)
        assert "no peak" in found.facts()["text"]
        assert "every further core is worthwhile" in found.facts()["text"]


class TestHonesty:
    def test_enough_levels_give_no_warning_but_for_what_is_far_away(self) -> None:
        assert fitted(measurements(0.05, 0.001)).warning is None
        near = fitted(measurements(0.05, 0.001, levels=(1, 2, 4)), 4)
        assert near.warning is not None
        assert "32 and 128 cores lie far beyond the 4" in near.warning
        assert near.warning in near.facts()["text"]

    def test_two_levels_are_too_few_to_know(self) -> None:
        found = fitted(measurements(0.05, 0.0, levels=(1, 2, 4), noise=0.0), 2)
        assert found.levels == [1, 2]
        assert found.sigma.median == pytest.approx(0.05)
        assert found.kappa == Estimate(0.0, None, None, 5)
        assert found.warning is not None
        assert "measured at 1 and 2 processes only" in found.warning
        assert "This is unreliable" in found.facts()["text"]

    @pytest.mark.parametrize(
        "throughputs", [{}, {1: [1000.0]}, {1: [1000.0], 2: []}, {2: [1900.0], 4: [1900.0]}]
    )
    def test_one_level_says_nothing(self, throughputs: Mapping[int, Sequence[float]]) -> None:
        assert usl.fit(throughputs, 2) is None

    def test_levels_at_which_processes_share_cores_are_left_out(self) -> None:
        throughputs = {**measurements(0.05, 0.001), 64: [100.0] * 5}
        assert fitted(throughputs) == fitted(measurements(0.05, 0.001))

    def test_a_single_repeat_pretends_no_interval(self) -> None:
        found = fitted(measurements(0.05, 0.001, repeats=1))
        assert (found.sigma.low, found.sigma.high, found.peak.low) == (None, None, None)
        assert found.warning is not None
        assert "measured once" in found.warning

    def test_what_is_no_throughput_is_refused(self) -> None:
        with pytest.raises(ValueError, match="positive"):
            usl.fit({1: [1000.0], 2: [0.0]}, 2)

    def test_facts_are_plain_numbers_for_a_json_file(self) -> None:
        facts = fitted(measurements(0.05, 0.001)).facts()
        assert set(facts["predictions"]) == {"8", "32", "128"}
        assert set(facts["sigma"]) == {"median", "low", "high", "n", "method"}
        assert type(facts["kappa"]["median"]) is float
