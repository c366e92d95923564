"""Previews made small enough for a page."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

HEIGHT = 72


def thumbnails(previews: Mapping[str, Path]) -> dict[str, str]:
    """Return a ``data:`` URL of each file that is an image, by name."""
    urls = {}
    for name, path in previews.items():
        data = thumbnail(path, HEIGHT)
        if data is not None:
            urls[name] = "data:image/jpeg;base64," + base64.b64encode(data).decode()
    return urls


def thumbnail(file: Path | BinaryIO, height: int) -> bytes | None:
    """Return an image as a JPEG of at most that height, or None if the file is no image."""
    from PIL import Image

    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # it is missing or damaged, which PIL tells by any of these errors
    height = min(height, image.height)
    size = (max(1, round(image.width * height / image.height)), height)
    buffer = io.BytesIO()
    image.reduce(max(1, image.height // height)).resize(size).save(buffer, "JPEG", quality=72)
    return buffer.getvalue()
