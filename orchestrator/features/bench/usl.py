"""The Universal Scalability Law: the cost of contention and coherency, measured, and predicted for
more cores.

``C(N) = N / (1 + σ (N - 1) + κ N (N - 1))`` (N. J. Gunther, "Guerrilla Capacity Planning", Springer
2007, ch. 6). C is the speed-up of N processes on N cores, σ the part of the work that only one can
do at a time, κ the cost of keeping each pair of processes consistent. It is fitted to throughputs
X(N) = X(1) C(N) in the form that is linear in its three unknowns, ``N / X(N) = a + aσ (N - 1) + aκ
N (N - 1)``, a = 1 / X(1), by least squares of relative errors with σ, κ ≥ 0. numpy is imported
late.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.statistics import LEVEL, Estimate, t_quantile
from orchestrator.analysis.throughput_ratios import with_interval
from orchestrator.core.text import joined

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

PREDICTED = (8, 32, 128)
MOST = 4096
"""Largest number of cores that is reported: a figure beyond is given as this number."""
WORTH = 0.5
"""A further core is worthwhile where it adds at least this share of the first core's throughput."""
LEAST_LEVELS = 3
FAR = 4
"""Predictions for more than this many times the measured cores carry a warning."""
RESAMPLES = 1_000
INTERVAL_METHOD = "bootstrap of residuals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The law fitted to one baseline. Intervals are of 95 % over the repeats; there are none with a
    single repeat.
    """

    sigma: Estimate
    kappa: Estimate
    predictions: Mapping[int, Estimate]
    """Number of cores → speed-up against one core."""
    peak: Estimate
    """Number of cores with the most throughput, at most :data:`MOST`."""
    worth: Estimate
    """The last core that adds at least half of what the first one does, at most :data:`MOST`."""
    levels: Sequence[int]
    warning: str | None
    """Why the fit is unreliable."""

    def facts(self) -> dict[str, Any]:
        """The fit as an object of ``report.json``."""
        law = self.law()
        return {
            "sigma": self.sigma.facts(),
            "kappa": self.kappa.facts(),
            "predictions": {str(cores): one.facts() for cores, one in self.predictions.items()},
            "peak": self.peak.facts(),
            "worth": self.worth.facts(),
            "most": MOST,
            "levels": list(self.levels),
            "warning": self.warning,
            "law": law,
            "text": law if self.warning is None else f"{law}. This is unreliable: {self.warning}",
        }

    def law(self) -> str:
        """The law in words, without the warning."""

        def cores(value: float) -> str:
            return f"over {MOST}" if value >= MOST else f"{value:.0f}"

        predictions = ", ".join(
            f"{with_interval(one, '{:.1f}'.format)} at {n}" for n, one in self.predictions.items()
        )
        peak = "no peak"
        worth = "every further core is worthwhile"
        if self.peak.median < MOST:
            peak = f"a peak at {with_interval(self.peak, cores)} cores"
        if self.worth.median < MOST:
            worth = f"beyond {with_interval(self.worth, cores)} cores the next core adds less than half of the first"
        sigma = with_interval(self.sigma, "{:.4f}".format)
        kappa = with_interval(self.kappa, "{:.6f}".format)
        return f"σ = {sigma}, κ = {kappa}: speed-up {predictions} cores; {peak}; {worth}"


def speedup(cores: float, sigma: float, kappa: float) -> float:
    """C(N) for N = ``cores``."""
    return cores / (1 + sigma * (cores - 1) + kappa * cores * (cores - 1))


def fit(throughputs: Mapping[int, Sequence[float]], capacity: int) -> Fit | None:
    """Fit the law to ``throughputs`` (number of processes → one value per repeat).

    Levels above ``capacity``, where processes share cores, are left out. With two levels contention
    and coherency cannot be told apart: κ is then taken to be 0.

    :param capacity: processes that have cores of their own.
    :return: None with fewer than two levels.
    :raises ValueError: for throughputs that are not positive.
    """
    import numpy as np

    samples = {
        cores: values
        for cores, values in sorted(throughputs.items())
        if cores <= capacity and values
    }
    if any(value <= 0 for values in samples.values() for value in values):
        raise ValueError("throughputs must be positive")
    if len(samples) < 2:
        return None
    both = len(samples) >= LEAST_LEVELS
    inverse = {
        cores: 1 / np.asarray(values, dtype=np.float64)[None] for cores, values in samples.items()
    }
    best = _solve(inverse, both)[0]
    fewest = min(map(len, samples.values()))
    resampled = _solve(_resampled_levels(inverse), both) if fewest >= 2 else best[None][:0]

    def of(figure: Callable[[float, float], float]) -> Estimate:
        value = figure(*map(float, best))
        if not len(resampled):
            return Estimate(value, None, None, fewest)
        values = [figure(sigma, kappa) for sigma, kappa in resampled.tolist()]
        ends = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        low = min(float(ends[0]), value)
        high = max(float(ends[1]), value)
        return Estimate(value, low, high, fewest, INTERVAL_METHOD)

    return Fit(
        sigma=of(lambda sigma, _: sigma),
        kappa=of(lambda _, kappa: kappa) if both else Estimate(0.0, None, None, fewest),
        predictions={cores: of(partial(speedup, cores)) for cores in PREDICTED},
        peak=of(peak),
        worth=of(worth),
        levels=list(samples),
        warning=_warning(list(samples), fewest),
    )


def peak(sigma: float, kappa: float) -> float:
    """Number of cores with the most throughput, at most :data:`MOST`: where C'(N) is 0; 1 where C
    falls from there.
    """
    if kappa <= 0:
        return float(MOST) if sigma < 1 else 1.0
    return float(min(MOST, max(1.0, math.sqrt(max(0.0, 1 - sigma) / kappa))))


def worth(sigma: float, kappa: float) -> float:
    """The largest N up to :data:`MOST` with C(N) − C(N − 1) ≥ :data:`WORTH`; this difference falls
    with N.
    """
    low = 1
    high = MOST
    while low < high:
        middle = (low + high + 1) // 2
        added = speedup(middle, sigma, kappa) - speedup(middle - 1, sigma, kappa)
        if added >= WORTH:
            low = middle
        else:
            high = middle - 1
    return float(low)


def _resampled_levels(inverse: Mapping[int, Floats]) -> dict[int, Floats]:
    """Resampled values of each level: its mean times relative residuals that are drawn from all
    levels.

    The residuals are pooled because the few repeats of one level do not show how much they scatter.
    They are stretched because values lie nearer to their own mean than to the true one, and as
    Student's distribution is wider than the normal one (the "expanded" percentile interval,
    Hesterberg 2015, as in statistics.py).
    """
    import numpy as np

    generator = np.random.default_rng(0)
    means = {cores: float(values.mean()) for cores, values in inverse.items()}
    residuals = [
        (values[0] / means[cores] - 1) * math.sqrt(values.size / (values.size - 1))
        for cores, values in inverse.items()
    ]
    pool = np.concatenate(residuals)
    probability = (1 + LEVEL) / 2
    stretch = t_quantile(probability, pool.size - len(inverse)) / NormalDist().inv_cdf(probability)
    return {
        # The exponential keeps the seconds positive, however far the residuals scatter.
        cores: means[cores] * np.exp(stretch * generator.choice(pool, (RESAMPLES, values.size)))
        for cores, values in inverse.items()
    }


def _solve(inverse: Mapping[int, Floats], both: bool) -> Floats:
    """σ and κ of each sample, shape (n_samples, 2); κ is 0 unless ``both``.

    The least squares under σ, κ ≥ 0 are the unconstrained ones of the unknowns that are not 0: each
    subset is tried.

    :param inverse: cores → seconds per env_step, shape (n_samples, n_repeats).
    """
    import numpy as np

    cores = np.concatenate(
        [np.full(values.shape[1], float(number)) for number, values in inverse.items()]
    )
    seconds = np.concatenate(list(inverse.values()), axis=1) * cores
    columns = np.stack([np.ones_like(cores), cores - 1, cores * (cores - 1)], axis=1)
    weighted = columns[None] / seconds[:, :, None]  # (n_samples, n_values, 3)
    products = weighted.transpose(0, 2, 1) @ weighted
    sums = weighted.sum(axis=1)
    solutions = np.zeros((len(seconds), 2))
    least = np.full(len(seconds), np.inf)
    for used in ([0, 1, 2], [0, 1], [0, 2], [0]) if both else ([0, 1], [0]):
        unknowns = np.zeros((len(seconds), 3))
        solved = np.linalg.solve(products[:, used][:, :, used], sums[:, used, None])
        unknowns[:, used] = solved[:, :, 0]
        error = np.square((weighted @ unknowns[:, :, None])[:, :, 0] - 1).sum(axis=1)
        better = (unknowns >= 0).all(axis=1) & (error < least)
        least[better] = error[better]
        solutions[better] = unknowns[better, 1:] / unknowns[better, :1]
    return solutions


def _warning(levels: Sequence[int], fewest: int) -> str | None:
    reasons = []
    if len(levels) < LEAST_LEVELS:
        reasons.append(
            f"it was measured at {joined(levels)} processes only, and contention cannot be told from coherency"
            f" with fewer than {LEAST_LEVELS} levels that have a core for every process (κ is taken to be 0)"
        )
    if far := [cores for cores in PREDICTED if cores > FAR * levels[-1]]:
        reasons.append(
            f"predictions for {joined(far)} cores lie far beyond the {levels[-1]} measured cores,"
            " and another machine has other caches and memory channels"
        )
    if fewest < 2:
        reasons.append("a level was measured once, so there are no intervals")
    return "; ".join(reasons) or None
