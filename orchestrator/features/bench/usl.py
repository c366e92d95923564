"""The Universal Scalability Law: the cost of contention and coherency, measured, and predicted for
more cores.

``C(N) = N / (1 + σ (N - 1) + κ N (N - 1))`` (N. J. Gunther, "Guerrilla Capacity Planning", Springer
2007, ch. 6). C is the speed-up of N processes on N cores, σ the part of the work that only one can
do at a time, κ the cost of keeping each pair of processes consistent. It is fitted to throughputs
X(N) = X(1) C(N) in the form that is linear in its three unknowns, ``N / X(N) = a + aσ (N - 1) + aκ
N (N - 1)``, a = 1 / X(1), by least squares of relative errors with σ, κ ≥ 0. numpy and scipy
are imported late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.text import joined

PREDICTED = (8, 32, 128)
MOST = 4096
"""Largest peak that is reported: one beyond is given as this number."""
LEAST_LEVELS = 3
FAR = 4
"""Predictions for more than this many times the measured cores carry a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The law fitted to one baseline."""

    sigma: float
    kappa: float
    levels: Sequence[int]
    """Numbers of processes that it is fitted to."""

    @property
    def predictions(self) -> dict[int, float]:
        """Number of cores → speed-up against one core."""
        return {cores: speedup(cores, self.sigma, self.kappa) for cores in PREDICTED}

    @property
    def warning(self) -> str | None:
        """Why the fit is unreliable."""
        reasons = []
        if len(self.levels) < LEAST_LEVELS:
            reasons.append(
                f"it was measured at {joined(self.levels)} processes only, and contention cannot be told from"
                f" coherency with fewer than {LEAST_LEVELS} levels that have a core for every process (κ is taken to"
                " be 0)"
            )
        if far := [cores for cores in PREDICTED if cores > FAR * self.levels[-1]]:
            reasons.append(
                f"predictions for {joined(far)} cores lie far beyond the {self.levels[-1]} measured cores,"
                " and another machine has other caches and memory channels"
            )
        return "; ".join(reasons) or None

    def facts(self) -> dict[str, Any]:
        """The fit as an object of ``report.json``."""
        law = self.law()
        return {
            "sigma": self.sigma,
            "kappa": self.kappa,
            "predictions": {str(cores): value for cores, value in self.predictions.items()},
            "peak": peak(self.sigma, self.kappa),
            "most": MOST,
            "levels": list(self.levels),
            "warning": self.warning,
            "law": law,
            "text": law if self.warning is None else f"{law}. This is unreliable: {self.warning}",
        }

    def law(self) -> str:
        """The law in words, without the warning."""
        predictions = ", ".join(
            f"{value:.1f} at {cores}" for cores, value in self.predictions.items()
        )
        most = peak(self.sigma, self.kappa)
        where = "no peak" if most >= MOST else f"a peak at {most:.0f} cores"
        return f"σ = {self.sigma:.4f}, κ = {self.kappa:.6f}: speed-up {predictions} cores; {where}"


def speedup(cores: float, sigma: float, kappa: float) -> float:
    """C(N) for N = ``cores``."""
    return cores / (1 + sigma * (cores - 1) + kappa * cores * (cores - 1))


def peak(sigma: float, kappa: float) -> float:
    """Number of cores with the most throughput, at most :data:`MOST`: where C'(N) is 0; 1 where C
    falls from there.
    """
    if kappa <= 0:
        return float(MOST) if sigma < 1 else 1.0
    return float(min(MOST, max(1.0, math.sqrt(max(0.0, 1 - sigma) / kappa))))


def fit(throughputs: Mapping[int, Sequence[float]], capacity: int) -> Fit | None:
    """Fit the law to ``throughputs`` (number of processes → one value per repeat).

    Levels above ``capacity``, where processes share cores, are left out. With two levels contention
    and coherency cannot be told apart: κ is then taken to be 0.

    :param capacity: processes that have cores of their own.
    :return: None with fewer than two levels.
    :raises ValueError: for throughputs that are not positive.
    """
    samples = {
        cores: values
        for cores, values in sorted(throughputs.items())
        if cores <= capacity and values
    }
    if any(value <= 0 for values in samples.values() for value in values):
        raise ValueError("throughputs must be positive")
    if len(samples) < 2:
        return None
    sigma, kappa = _least_squares(samples, both=len(samples) >= LEAST_LEVELS)
    return Fit(sigma=sigma, kappa=kappa, levels=list(samples))


def _least_squares(samples: Mapping[int, Sequence[float]], *, both: bool) -> tuple[float, float]:
    """Return σ and κ; κ is 0 unless ``both``."""
    import numpy as np
    from scipy import optimize

    cores = np.array([number for number, values in samples.items() for _ in values], dtype=float)
    seconds = cores / np.array([value for values in samples.values() for value in values])
    columns = np.stack([np.ones_like(cores), cores - 1, cores * (cores - 1)], axis=1)
    relative = columns[:, : 3 if both else 2] / seconds[:, None]
    unknowns, _ = optimize.nnls(relative, np.ones_like(cores))
    return float(unknowns[1] / unknowns[0]), float(unknowns[2] / unknowns[0]) if both else 0.0
