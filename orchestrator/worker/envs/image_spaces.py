"""Which observations are images. Imports neither torch nor stable-baselines3, because preflight
asks too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

HIGHEST_PIXEL = 255
LEAST_SIDE = 36
"""Pixels that Stable-Baselines3's ``NatureCNN`` (Mnih et al. 2015) needs along each side."""


def is_image(space: spaces.Space[Any], *, normalize: bool = True) -> bool:
    """Whether Stable-Baselines3 takes them for images:
    ``stable_baselines3.common.preprocessing.is_image_space``.

    :param normalize: whether pixels are divided by :data:`HIGHEST_PIXEL`; otherwise they may have any
        range.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    return not normalize or (
        space.dtype == np.uint8
        and bool(np.all(space.low == 0) and np.all(space.high == HIGHEST_PIXEL))
    )
