"""How far the motions of two versions of a robot come apart from the same states under the same
controls.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray

from orchestrator.features.advice.physics_advice import MedianEstimate
from orchestrator.features.advice.worker.median_estimates import median_estimate
from orchestrator.worker.envs import divergence
from orchestrator.worker.mjmodel.structure import Floats, fixed_geoms, posed_data

NEGLIGIBLE = 1e-3
"""Added to both deviations, in multiples of the robot's size, before one is divided by the other:
what is far below it makes no difference."""
_BAD = sorted(map(int, divergence.quantities()))
_POSITIONS = mujoco.mjtStage.mjSTAGE_POS.value


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionTest:
    """States to start from, and controls for each of them; the same for every version of the
    robot.
    """

    starts: Floats
    """``(n_starts, state)`` rows of ``mjSTATE_INTEGRATION``."""
    controls: Floats
    """``(periods, n_starts, nu)`` values of ``MjData.ctrl``, each held for one control period."""
    centres: Floats
    """``(n_bodies, 3)`` centre of mass of each body with joints in its own frame, as in the
    original."""
    is_compared: NDArray[np.bool_]
    """``(periods, n_starts)`` whether the original's episode still ran; what comes after its end
    does not count."""

    def motion(self, model: mujoco.MjModel, steps: int) -> Floats:
        """``(periods, n_starts, n_bodies, 3)`` places of the centres in the world; NaN from
        divergence on.

        :param steps: physics steps of one control period.
        """
        count = len(self.starts)
        bodies = jointed_bodies(model)
        batch = Batch(model, count, nthread=1, persistent=bool(model.nplugin))
        batch.state[:] = self.starts
        ctrl = batch.bind("ctrl")
        xpos = batch.bind("xpos")
        xmat = batch.bind("xmat")
        result = np.empty((len(self.controls), count, len(bodies), 3))
        fallen = np.zeros(count, bool)
        for period, controls in enumerate(self.controls):
            ctrl[:] = controls
            batch.step(nstep=steps, stage=_POSITIONS)
            turned = xmat.reshape(count, -1, 3, 3)[:, bodies] @ self.centres[:, :, None]
            result[period] = xpos[:, bodies] + turned[..., 0]
            fallen |= batch.warning[:, _BAD, 1].any(axis=1) | ~np.isfinite(batch.state).all(axis=1)
            result[period, fallen] = np.nan
        return result


def jointed_bodies(model: mujoco.MjModel) -> NDArray[np.intp]:
    """Numbers of the bodies with joints, which are the same in every version of a robot."""
    return np.flatnonzero(model.body_jntnum)


def centres(model: mujoco.MjModel) -> Floats:
    """As :attr:`MotionTest.centres`."""
    return np.array(model.body_ipos[jointed_bodies(model)])


def size(model: mujoco.MjModel, pose: Floats) -> float:
    """Diagonal in metres of the box around the geoms of moving bodies in ``pose`` (nq,); at least 1
    mm.
    """
    data = posed_data(model, pose)
    geoms = np.flatnonzero(~fixed_geoms(model))
    bodies = jointed_bodies(model)
    places = np.concatenate((data.xipos[bodies], data.geom_xpos[geoms]))
    radii = np.concatenate((np.zeros(len(bodies)), model.geom_rbound[geoms]))[:, None]
    box = (places + radii).max(axis=0) - (places - radii).min(axis=0)
    return max(1e-3, float(np.linalg.norm(box)))


def deviations(
    motion: Floats, reference: Floats, is_compared: NDArray[np.bool_], size_m: float
) -> Floats:
    """``(n_starts,)`` RMS distance over bodies and control periods in multiples of ``size_m``;
    infinite where ``motion`` diverged, NaN where ``reference`` did.

    :param is_compared: as :attr:`MotionTest.is_compared`, true at least once for each start.
    """
    squares = ((motion - reference) ** 2).sum(axis=-1).mean(axis=-1)
    result = (
        np.sqrt(np.where(is_compared, squares, 0.0).sum(axis=0) / is_compared.sum(axis=0)) / size_m
    )
    result[(np.isnan(motion).any(axis=(2, 3)) & is_compared).any(axis=0)] = np.inf
    result[(np.isnan(reference).any(axis=(2, 3)) & is_compared).any(axis=0)] = np.nan
    return np.asarray(result)


def relative_estimate(changed: Floats, original: Floats) -> MedianEstimate | None:
    """The median of the ratios of two deviations from the same start; None where no start has
    both.
    """
    is_known = np.isfinite(original) & ~np.isnan(changed)
    if not is_known.any():
        return None
    return median_estimate(((changed + NEGLIGIBLE) / (original + NEGLIGIBLE))[is_known].tolist())


def estimate(values: Floats) -> MedianEstimate | None:
    """The median over the starts whose reference did not diverge."""
    known = values[~np.isnan(values)]
    return median_estimate(known.tolist()) if len(known) else None
