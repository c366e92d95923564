"""A Gaussian process of noisy values, averaged over what its parameters may be.

What is modelled: the value of a point is a smooth function of its place, and a deviation of its
own that no neighbour tells of (a part of the nugget: bodies are rougher than a smooth function); each seed adds
noise (Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", chapters 2 and 5).

How smooth the function is and how large the noise is, is not known either. The parameters that make
the values likeliest are a guess, and from a few dozen values a bad one: often that there is no noise
at all. So all parameters of a grid are weighed by their marginal likelihood, and beliefs are
averaged over them (Bayesian model averaging). Constant mean and variance are integrated in closed
form, which for the mean is ordinary kriging.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Length scales of the function, in diagonals of the unit cube."""
NOISES = (0.05, 0.2, 0.4, 0.6, 0.8)
"""Variance of a seed, as a share of the variance of the model."""
ROUGHNESSES = (0.0, 0.1)
"""Variance of the deviation that each place has of its own, as such a share."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """In the values at some places, without the noise of their seeds."""

    means: Floats
    errors: Floats
    """Standard deviations."""


def belief(places: Floats, values: Sequence[Sequence[float]], at: Floats) -> Belief:
    """What noisy values at some places say of the values at others, or at the same.

    :param places: ``(points, axes)``, in the unit cube.
    :param values: of each point those of its seeds, one or more; finite.
    :param at: ``(others, axes)``.
    """
    together = np.concatenate([np.asarray(one, float) for one in values])
    if together.min() == together.max():
        return Belief(means=np.full(len(at), together[0]), errors=np.zeros(len(at)))
    # The squares of huge values would be infinite.
    largest = float(np.abs(together).max())
    middle = largest * float((together / largest).mean())
    spread = largest * float((together / largest).std())
    model = _Model.of(places, [(np.asarray(one, float) - middle) / spread for one in values], at)
    beliefs = list(model.posteriors())
    likelihoods = np.array([one.log_likelihood for one in beliefs])
    weights = np.exp(likelihoods - likelihoods.max())
    weights /= weights.sum()
    of_parameters = np.array([one.means for one in beliefs])
    means = weights @ of_parameters
    variances = weights @ (
        np.array([one.variances for one in beliefs]) + (of_parameters - means) ** 2
    )
    return Belief(means=middle + spread * means, errors=spread * np.sqrt(variances))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """Of the variance; together they are 1."""

    smooth: float
    roughness: float
    noise: float


def _all_shares() -> Iterator[_Shares]:
    for noise, roughness in itertools.product(NOISES, ROUGHNESSES):
        yield _Shares(smooth=1.0 - noise - roughness, roughness=roughness, noise=noise)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Posterior:
    """With one choice of the parameters."""

    log_likelihood: float
    """Of these parameters, but for a constant."""
    means: Floats
    variances: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Model:
    """The values, with mean 0 and variance 1, and how far everything is from everything."""

    seeds: Floats
    """``(points,)``: how many values each has."""
    values: Floats
    """``(points,)``: the means over them."""
    squares_within: float
    """Sum of the squares of the values around the mean of their point."""
    distances: Floats
    """``(points, points)``, in diagonals of the unit cube."""
    distances_at: Floats
    """``(others, points)``."""

    @classmethod
    def of(cls, places: Floats, values: Sequence[Floats], at: Floats) -> _Model:
        return cls(
            seeds=np.array([len(one) for one in values], float),
            values=np.array([one.mean() for one in values]),
            squares_within=math.fsum(((one - one.mean()) ** 2).sum() for one in values),
            distances=_distances(places, places),
            distances_at=_distances(at, places),
        )

    def posteriors(self) -> Iterator[_Posterior]:
        """With each choice of the parameters."""
        is_same = (self.distances == 0.0).astype(float)
        is_same_at = (self.distances_at == 0.0).astype(float)
        for length in LENGTHS:
            correlations = _matern(self.distances / length)
            correlations_at = _matern(self.distances_at / length)
            for shares in _all_shares():
                yield self._posterior(
                    shares,
                    shares.smooth * correlations + shares.roughness * is_same,
                    shares.smooth * correlations_at + shares.roughness * is_same_at,
                )

    def _posterior(self, shares: _Shares, covariances: Floats, known: Floats) -> _Posterior:
        """Generalised least squares for the mean. The variance has a scaled inverse chi-squared
        prior that counts as one value with the variance of all.

        :param covariances: ``(points, points)``, between points without their noise.
        :param known: ``(others, points)``, of them with others.
        """
        points = len(self.values)
        number = float(self.seeds.sum())
        noisy = covariances + np.diag(shares.noise / self.seeds)
        inverse = np.linalg.inv(noisy)
        _, log_determinant = np.linalg.slogdet(noisy)
        of_mean = inverse.sum(axis=1)
        precision_of_mean = float(of_mean.sum())
        mean = of_mean @ self.values / precision_of_mean
        residuals = self.values - mean
        weighted = inverse @ residuals
        squares = 1.0 + float(residuals @ weighted) + self.squares_within / shares.noise
        log_likelihood = -0.5 * (
            log_determinant
            + (number - points) * math.log(shares.noise)
            + math.log(precision_of_mean)
            + number * math.log(squares)
        )
        explained = ((known @ inverse) * known).sum(axis=1)
        of_unknown_mean = (1.0 - known @ of_mean) ** 2 / precision_of_mean
        variances = shares.smooth + shares.roughness - explained + of_unknown_mean
        # of Student's t with as many degrees of freedom as there are values
        scale = squares / max(number - 2.0, 1.0)
        return _Posterior(
            log_likelihood=float(log_likelihood),
            means=mean + known @ weighted,
            variances=scale * np.maximum(variances, 0.0),
        )


def _distances(ones: Floats, others: Floats) -> Floats:
    """In diagonals of the unit cube, ``(ones, others)``."""
    squares = np.zeros((len(ones), len(others)))
    for axis in range(ones.shape[1]):
        squares += (ones[:, axis, None] - others[None, :, axis]) ** 2
    distances: Floats = np.sqrt(squares / ones.shape[1])
    return distances


def _matern(distances: Floats) -> Floats:
    """Matérn's covariance function with smoothness 5/2.

    :param distances: in length scales.
    """
    scaled = math.sqrt(5.0) * distances
    correlations: Floats = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return correlations
