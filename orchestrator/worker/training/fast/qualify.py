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
    if not isinstance(observation_space, spaces.Box):
        kind = type(observation_space).__name__
        return f"its observation space is a {kind}, and the fast learner takes a Box of numbers"
    if is_image(observation_space):  # the policy divides them by 255
        return "its observations are images, and the fast learner takes numbers that are none"
    if not isinstance(action_space, spaces.Box):
        kind = type(action_space).__name__
        return f"its action space is a {kind}, and the fast learner takes a one-dimensional Box"
    if len(action_space.shape) != 1 or action_space.dtype not in ACTION_TYPES:
        box = f"a Box of {action_space.dtype} with the shape {action_space.shape}"
        return f"its action space is {box}, and the fast learner takes a one-dimensional Box of float32 or float64"
    return None
