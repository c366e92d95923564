"""Which trainings the fast learner can do. Imports neither torch nor stable-baselines3, because
preflight asks too.

:func:`orchestrator.core.worker_spec.unfit_for_fast` judges the values of the job file. The other
``policy_kwargs`` do not matter: ``net_arch``, ``ortho_init`` and ``log_std_init`` decide shapes and
initial values; ``full_std``, ``use_expln`` and ``squash_output`` are for gSDE, ``normalize_images``
for images; and two feature extractors (``share_features_extractor``) do the same as one, because
MlpPolicy's only flattens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs.image_spaces import is_image

ACTION_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
"""Types of actions; the rollout buffer would round any other."""


def unfit(
    spec: WorkerSpec, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> str | None:
    """Why the fast learner cannot do this training, in words; None when it can."""
    return "; ".join(spec.why_not_fast().values()) or unfit_spaces(observation_space, action_space)


def unfit_spaces(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
) -> str | None:
    """Why the fast learner cannot use these spaces, before or after Stable-Baselines3's wrappers;
    None when it can.
    """
    # The policy divides images by 255.
    if not isinstance(observation_space, spaces.Box) or is_image(observation_space):
        return "its observations are no Box of numbers, or an image"
    is_vector = isinstance(action_space, spaces.Box) and len(action_space.shape) == 1
    if not is_vector or action_space.dtype not in ACTION_TYPES:
        return "its actions are no one-dimensional Box of float32 or float64"
    return None
