"""Film strips small enough for a page, whatever their number."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

BUDGET_BYTES = 4 << 20
"""For the pictures of one page; in base64 they take a third more."""
MOST_BYTES = 32 << 10
"""For one of them."""
HEIGHTS = (96, 64, 44, 32)


def thumbnails(previews: Mapping[str, Path]) -> dict[str, str]:
    """Name → ``data:`` address of a picture of at most its part of :data:`BUDGET_BYTES`.

    A file that is no whole picture is left out.
    """
    if not previews:
        return {}
    budget = min(MOST_BYTES, BUDGET_BYTES // len(previews))
    heights: tuple[int, ...] = HEIGHTS
    made = {}
    for name, path in previews.items():
        picture = _picture(path)
        if picture is None:
            continue
        while heights:
            data = _small(picture, heights[0])
            if len(data) <= budget:
                made[name] = "data:image/jpeg;base64," + base64.b64encode(data).decode()
                break
            heights = heights[1:]  # the others are much alike: they need not be tried so large
    return made


def _picture(path: Path) -> Image | None:
    from PIL import Image

    try:
        with Image.open(path) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _small(picture: Image, height: int) -> bytes:
    """A JPEG of that height, or of its own where that is less."""
    height = min(height, picture.height)
    smaller = picture.reduce(max(1, picture.height // height))
    buffer = io.BytesIO()
    smaller.resize((max(1, round(picture.width * height / picture.height)), height)).save(buffer, "JPEG", quality=72)
    return buffer.getvalue()
