"""A landscape with as many bodies as are wanted, made from those of a table by a model of them.

A table of some hundred bodies pays for a dozen trainings only: with more, a search would have tried
most of it. Eggensperger et al. (2015) compare optimizers of hyperparameters on a model that is fitted
to real trainings, and Zela et al. (2022) do so for architectures (Surrogate NAS Benchmarks). Here:

- **The mean** of a new body, at each rung and at the end, is foretold by a model of the means of the
  trained ones.
- **Its roughness** is what the model missed of a trained body that it was not shown, less what is
  noise of its seeds. No model can learn that; who trains the body meets it.
- **Its seeds** deviate from that as those of the same trained body do, at all rungs together. It is
  one of which nearly the same was foretold.

Where the table is smooth so is the surrogate, which suits samplers with a model of the same kind.
Two kinds of model are therefore fitted: a search that is good on both does not owe that to one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.bodies.landscape import ALIKE, Floats, Landscape

FOLDS = 8
"""Parts of the table, each of which is foretold from the others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surrogate:
    """What a model makes of a table."""

    landscape: Landscape
    """Of new bodies."""
    explained: float
    """Share of the variance between bodies that the model foretells of those it was not shown: R²
    of their means over the seeds, at most the table's
    :attr:`~benchmarks.bodies.landscape.Landscape.reliability` but for chance.
    """


def surrogate(met: Landscape, bodies: int, model: str) -> Surrogate:
    """:param met: as the table has it.
    :param bodies: how many the new landscape has, at points of a Sobol sequence that is not that of
        the table.
    :param model: a name of :data:`MODELS`.
    """
    from scipy.stats import qmc

    chance = np.random.default_rng(0)
    places = qmc.Sobol(len(met.space), seed=1).random(bodies)
    curves = _curves(met)
    means = curves.mean(axis=1)
    of_others = _foretold_of_others(met.places, means, MODELS[model])
    missed = means - of_others
    smooth = _foretold(met.places, means, places, MODELS[model])
    alike = _alike(of_others[:, -1], smooth[:, -1], chance)
    rough = missed[alike] * _share_that_is_not_noise(curves, missed)
    of_seeds = curves - means[:, None, :]
    made = (smooth + rough)[:, None, :] + of_seeds[alike]
    return Surrogate(
        landscape=Landscape(
            space=met.space,
            places=places,
            rungs=met.rungs,
            returns=made[:, :, :-1],
            values=made[:, :, -1],
        ),
        explained=float(1 - missed[:, -1].var() / means[:, -1].var()),
    )


def _curves(met: Landscape) -> Floats:
    """``(bodies, seeds, rungs + 1)``: returns at the rungs, then the value; where no episode had
    ended at a rung, what the other seeds or else the other bodies have there."""
    curves = np.concatenate([met.returns, met.values[:, :, None]], axis=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a body without any
        of_body = np.nanmean(curves, axis=1, keepdims=True)
    of_all = np.nanmean(curves, axis=(0, 1), keepdims=True)
    known = np.where(np.isfinite(of_body), of_body, of_all)
    return np.where(np.isfinite(curves), curves, known)


def _alike(
    of_trained: Floats, of_new: Floats, chance: np.random.Generator
) -> npt.NDArray[np.int64]:
    """For each new body one of the :data:`ALIKE` trained ones of which most nearly the same was
    foretold: not of which it was found, as those are bodies of which little was missed."""
    nearest = np.abs(of_trained[None, :] - of_new[:, None]).argsort(axis=1, kind="stable")
    chosen = chance.integers(0, min(ALIKE, len(of_trained)), len(of_new))
    return nearest[np.arange(len(of_new)), chosen]


def _share_that_is_not_noise(curves: Floats, missed: Floats) -> Floats:
    """``(rungs + 1,)``: by how much what the model missed is to be shrunk, so that its variance is
    that of the bodies alone."""
    of_mean = curves.var(axis=1, ddof=1).mean(axis=0) / curves.shape[1]
    shares: Floats = np.sqrt(np.clip(1 - of_mean / missed.var(axis=0), 0.0, 1.0))
    return shares


# -- models


def _trees() -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    return ExtraTreesRegressor(500, min_samples_leaf=3, random_state=0)


def _gaussian_process() -> Any:
    """A model of its own: by that of ``search.estimates``, searches that choose by the estimate would
    be judged by themselves.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel() * Matern(1.0, (0.05, 20.0), nu=2.5) + WhiteKernel()
    return GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)


MODELS: Mapping[str, Callable[[], Any]] = {
    "trees": _trees,
    "a Gaussian process": _gaussian_process,
}
"""Regressors of scikit-learn."""


def _foretold(places: Floats, means: Floats, at: Floats, make: Callable[[], Any]) -> Floats:
    """``(others, columns)``: each column by a model of its own."""
    from sklearn.exceptions import ConvergenceWarning

    columns = []
    for column in means.T:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound
            columns.append(make().fit(places, column).predict(at))
    return np.column_stack(columns)


def _foretold_of_others(places: Floats, means: Floats, make: Callable[[], Any]) -> Floats:
    """``(bodies, columns)``: of each body by a model that was not shown it."""
    fold = np.random.default_rng(0).permutation(len(places)) % FOLDS
    found = np.empty_like(means)
    for number in range(FOLDS):
        others = fold != number
        found[~others] = _foretold(places[others], means[others], places[~others], make)
    return found
