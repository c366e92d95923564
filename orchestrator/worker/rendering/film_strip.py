"""A sequence of pictures as a real-time video, and a film strip of a few of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from orchestrator.worker.rendering.offscreen import Frame, Picture

STRIP_FRAMES = 6
STRIP_HEIGHT = 240


def stride_and_rate(period_s: float, target_fps: float = 30.0) -> tuple[int, Fraction]:
    """Control steps between frames, and the frames per second at which they then play in real
    time.
    """
    stride = max(1, round(1 / (target_fps * period_s)))
    return stride, Fraction(1 / (stride * period_s)).limit_denominator(1000)


def strip_indices(frames: Sequence[Frame]) -> list[int]:
    """Numbers of the frames in the film strip: evenly spaced over the longest episode."""
    episodes = [frame.episode for frame in frames]
    longest = max(dict.fromkeys(episodes), key=episodes.count)
    members = [index for index, episode in enumerate(episodes) if episode == longest]
    positions = np.linspace(0, len(members) - 1, min(STRIP_FRAMES, len(members)))
    return [members[round(float(position))] for position in positions]


def film_strip(pictures: Sequence[tuple[float, Picture]]) -> bytes:
    """A PNG of ``pictures`` side by side, each with its time in seconds."""
    from PIL import Image, ImageDraw, ImageFont

    gap = 4
    font = ImageFont.load_default(size=18)
    images = []
    for time_s, picture in pictures:
        image = Image.fromarray(picture)
        width = round(image.width * STRIP_HEIGHT / image.height)
        image = image.resize((width, STRIP_HEIGHT), Image.Resampling.LANCZOS)
        label = f"{time_s:.2f} s"
        pen = ImageDraw.Draw(image)
        pen.text((8, 5), label, fill="white", font=font, stroke_width=2, stroke_fill="black")
        images.append(image)
    strip_width = sum(image.width + gap for image in images) - gap
    strip = Image.new("RGB", (strip_width, STRIP_HEIGHT), "white")
    x = 0
    for image in images:
        strip.paste(image, (x, 0))
        x += image.width + gap
    content = io.BytesIO()
    strip.save(content, "PNG", optimize=True)
    return content.getvalue()
