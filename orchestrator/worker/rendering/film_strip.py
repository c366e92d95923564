"""Pictures of an episode side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from orchestrator.worker.rendering.offscreen import Picture

STRIP_FRAMES = 6
STRIP_HEIGHT = 240
_GAP = 4


def strip_indices(episodes: Sequence[int]) -> list[int]:
    """Choose the frames of the film strip: evenly spaced over the longest episode.

    :param episodes: the number of the episode of each frame.
    """
    longest = max(dict.fromkeys(episodes), key=episodes.count)
    members = [index for index, episode in enumerate(episodes) if episode == longest]
    positions = np.linspace(0, len(members) - 1, min(STRIP_FRAMES, len(members)))
    return [members[round(float(position))] for position in positions]


def film_strip(pictures: Sequence[tuple[float, Picture]]) -> bytes:
    """Return a PNG of pictures of one size side by side, each with its time in seconds."""
    from PIL import Image, ImageDraw, ImageFont

    height, width, _ = pictures[0][1].shape
    width = round(width * STRIP_HEIGHT / height)
    strip = Image.new("RGB", (len(pictures) * (width + _GAP) - _GAP, STRIP_HEIGHT), "white")
    pen = ImageDraw.Draw(strip)
    font = ImageFont.load_default(size=18)
    for index, (time_s, picture) in enumerate(pictures):
        x = index * (width + _GAP)
        image = Image.fromarray(picture)
        strip.paste(image.resize((width, STRIP_HEIGHT), Image.Resampling.LANCZOS), (x, 0))
        text = f"{time_s:.2f} s"
        pen.text((x + 8, 5), text, fill="white", font=font, stroke_width=2, stroke_fill="black")
    content = io.BytesIO()
    strip.save(content, "PNG", optimize=True)
    return content.getvalue()
