"""Which observations are images. Imports neither torch nor stable-baselines3, because preflight
asks too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

HIGHEST_PIXEL = 255
LEAST_SIDE = 36
"""Pixels that the three convolutions of Stable-Baselines3's ``NatureCNN`` (Mnih et al. 2015) need along
each side: widths 8, 4, 3 with strides 4, 2, 1."""


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether Stable-Baselines3 takes them for images:
    ``stable_baselines3.common.preprocessing.is_image_space``.
    """
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.dtype == np.uint8
        and bool(np.all(space.low == 0) and np.all(space.high == HIGHEST_PIXEL))
    )


def image_size(space: spaces.Box) -> tuple[int, int]:
    """Height and width in pixels, as Stable-Baselines3 takes them: it puts the channels of ``uint8``
    images first, unless their dimension is the smallest one and is first already.

    :param space: of three dimensions.
    """
    has_channels_last = is_image(space) and np.argmin(space.shape) != 0
    height, width = space.shape[:2] if has_channels_last else space.shape[1:]
    return height, width
