"""Previews made small enough for a page, whatever their number."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from PIL.Image import Image

BUDGET_BYTES = 4 << 20
"""Limit for all images of a page, before base64, which adds a third."""
MOST_BYTES = 32 << 10
"""Limit for one image."""
HEIGHTS = (96, 64, 44, 32)


def thumbnails(previews: Mapping[str, Path]) -> dict[str, str]:
    """Name → ``data:`` URL of an image within its share of :data:`BUDGET_BYTES`, of files that are
    images.
    """
    if not previews:
        return {}
    budget = min(MOST_BYTES, BUDGET_BYTES // len(previews))
    heights = list(HEIGHTS)
    urls = {}
    for name, path in previews.items():
        image = _open(path)
        while image is not None and heights:
            data = _jpeg(image, heights[0])
            if len(data) <= budget:
                urls[name] = "data:image/jpeg;base64," + base64.b64encode(data).decode()
                break
            del heights[0]  # for all: previews have similar sizes, so a height is not tried again
    return urls


def thumbnail(file: Path | BinaryIO, height: int) -> bytes | None:
    """An image as a JPEG of at most that height; None for a file that is no image."""
    image = _open(file)
    return None if image is None else _jpeg(image, height)


def _open(file: Path | BinaryIO) -> Image | None:
    """None where it is missing, damaged or no image, which PIL tells by any of these errors."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            return opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _jpeg(image: Image, height: int) -> bytes:
    """A JPEG of that height, or of the image's own height where that is less."""
    height = min(height, image.height)
    size = (max(1, round(image.width * height / image.height)), height)
    buffer = io.BytesIO()
    image.reduce(max(1, image.height // height)).resize(size).save(buffer, "JPEG", quality=72)
    return buffer.getvalue()
