"""A sequence of pictures as a real-time video, and a film strip of a few of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from orchestrator.worker.rendering.offscreen import Frame, Picture

STRIP_FRAMES, STRIP_HEIGHT = 6, 240


def stride_and_rate(period_s: float, target_fps: float = 30.0) -> tuple[int, Fraction]:
    """Control steps between frames, and the frames per second at which they then play in real
    time.
    """
    stride = max(1, round(1 / (target_fps * period_s)))
    return stride, Fraction(1 / (stride * period_s)).limit_denominator(1000)


def encode(pictures: Iterable[Picture], rate: Fraction) -> bytes:
    """An MP4 (H.264, yuv420p) of ``pictures``, all of one size; a last odd row or column is cut
    off.
    """
    import av

    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "21", "preset": "fast"})
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for picture in pictures:
            even = picture[: picture.shape[0] // 2 * 2, : picture.shape[1] // 2 * 2]
            if not stream.codec_context.is_open:
                stream.height, stream.width = even.shape[:2]
            container.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
                )
            )
        container.mux(stream.encode(None))
    return content.getvalue()


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
        image = image.resize(
            (round(image.width * STRIP_HEIGHT / image.height), STRIP_HEIGHT),
            Image.Resampling.LANCZOS,
        )
        pen = ImageDraw.Draw(image)
        pen.text(
            (8, 5), f"{time_s:.2f} s", fill="white", font=font, stroke_width=2, stroke_fill="black"
        )
        images.append(image)
    strip = Image.new(
        "RGB", (sum(image.width + gap for image in images) - gap, STRIP_HEIGHT), "white"
    )
    x = 0
    for image in images:
        strip.paste(image, (x, 0))
        x += image.width + gap
    content = io.BytesIO()
    strip.save(content, "PNG", optimize=True)
    return content.getvalue()
