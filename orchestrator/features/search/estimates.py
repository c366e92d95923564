"""What the points of a search are worth, estimated from all of them by a model.

The value of a trial is a draw: another seed gives another one. So the best value *seen* is mostly
that of a point that had luck. A Gaussian process, fitted to all finished trials, takes neighbouring
points as evidence for each other, and tells noise from differences between points (Rasmussen &
Williams 2006, "Gaussian Processes for Machine Learning", chapters 2 and 5).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from orchestrator.core.text import is_installed
from orchestrator.features.search.declaration.spec import Dimension, Direction
from orchestrator.features.search.history import Trial

FEWEST = 8
"""Finished trials that a model is fitted to at least."""
MOST = 300
"""Values that it is fitted to at most, those of the latest trials: its cost grows with the third
power of their number."""
LEAST_NOISE = 0.3
"""Variance of the noise of a training, in variances of all values, that is assumed at least. Few
values alone do not tell it: the likeliest is often none at all. Without this bound, on tables of
trained bodies, the belief in the best of 16 to 60 trials held its true value in 5 to 65 % of the
cases; with it in 38 to 72 %. Which trial is chosen hardly changes (docs/measurements/search.md).
"""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The value of a point, without the noise of its training."""

    mean: float
    error: float
    """Standard deviation of the model's belief."""


def estimates(space: Sequence[Dimension], trials: Sequence[Trial]) -> Mapping[int, Estimate]:
    """The estimated first value of finished trials, by number; empty with fewer than
    :data:`FEWEST`, where they have begun with different policies, or without scikit-learn.

    :param trials: finished, none of which repeats another.
    """
    if not are_possible(trials):
        return {}
    in_order = sorted(trials, key=lambda trial: trial.number)
    places = np.array([_place(space, trial) for trial in in_order])
    # The model takes each seed as a value of its own with the same noise, so that the mean of n of
    # them has an n-th of it.
    values = [trial.seed_values for trial in _fitted_to(in_order)]
    seeds = [len(of_trial) for of_trial in values]
    observed = np.repeat(places[-len(values) :], seeds, axis=0)
    means, errors = predicted(observed, np.concatenate(values), places)
    return {
        trial.number: Estimate(mean=float(mean), error=float(error))
        for trial, mean, error in zip(in_order, means, errors, strict=True)
    }


def _fitted_to(trials: Sequence[Trial]) -> Sequence[Trial]:
    """The latest, each with all of its seeds, as long as these have at most :data:`MOST` values;
    at least one.
    """
    values = 0
    for place, trial in enumerate(reversed(trials)):
        values += len(trial.seed_values)
        if values > MOST and place > 0:
            return trials[-place:]
    return trials


def ranked_by(
    found: Mapping[int, Estimate], trials: Iterable[Trial], direction: Direction
) -> list[Trial]:
    """Those of ``trials`` that have an estimate, the best first; equal ones stay in their order.

    :param found: by number.
    """
    sign = 1 if direction == "minimize" else -1
    estimated = [trial for trial in trials if trial.number in found]
    return sorted(estimated, key=lambda trial: sign * found[trial.number].mean)


def are_possible(trials: Sequence[Trial]) -> bool:
    """Whether these finished trials have estimates."""
    starts_alike = len({trial.parent for trial in trials}) == 1
    return len(trials) >= FEWEST and starts_alike and is_installed("sklearn")


def _place(space: Sequence[Dimension], trial: Trial) -> list[float]:
    """A point in the unit cube; each of several choices has an axis of its own."""
    found: list[float] = []
    for dimension in space:
        unit = dimension.unit(trial.point[dimension.key])
        if dimension.choices:
            chosen = int(unit * len(dimension.choices))
            found += [float(place == chosen) for place in range(len(dimension.choices))]
        else:
            found.append(unit)
    return found


def predicted(places: Floats, values: Floats, at: Floats) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the noiseless value at some places, by a model of noisy values
    at others.

    All axes have one length. With lengths of their own, fitted to 60 noisy values in six
    dimensions, intervals of 95 % held the true value in 66 % of the cases; with one, in 83 %;
    both without :data:`LEAST_NOISE`.

    :param places: ``(points, axes)``, in the unit cube.
    :param values: ``(points,)``.
    :param at: ``(others, axes)``.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    spread = float(values.std())
    if spread == 0.0:
        return np.full(len(at), values[0]), np.zeros(len(at))
    smooth = ConstantKernel(1.0, (1e-2, 1e1)) * Matern(1.0, (0.1, 10.0), nu=2.5)
    model = GaussianProcessRegressor(
        kernel=smooth + WhiteKernel(0.5, (LEAST_NOISE, 1e1)), n_restarts_optimizer=1, random_state=0
    )
    with warnings.catch_warnings():
        # A length at its bound: noise without structure, or a structure as simple as can be.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(places, (values - values.mean()) / spread)
    # Without the kernel of the noise: the belief in the point, not in another training of it.
    kernel = model.kernel_.k1
    covariances = kernel(places, at)
    weights = np.linalg.solve(model.kernel_(places), covariances)
    means = weights.T @ model.y_train_
    variances = kernel.diag(at) - np.einsum("ij,ij->j", covariances, weights)
    errors = np.sqrt(np.maximum(variances, 0.0))
    return means * spread + values.mean(), errors * spread
