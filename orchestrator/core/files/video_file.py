"""Videos read picture by picture, and pictures as a video or an animated GIF."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.mp4 import mp4
from orchestrator.core.paths import JobPaths

if TYPE_CHECKING:
    from PIL import Image

COLOURS = 128
GIF_WIDTH = 480
GIF_FPS = 10


def write_gif(job: JobPaths, folder: Path) -> Path:
    """Write the video of a job that was made last in ``folder`` as an animated GIF beside it.

    :raises OSError: it cannot be read or written.
    """
    videos = folder.glob(f"{job.video.stem}*{job.video.suffix}")
    video = max(videos, key=lambda path: path.stat().st_mtime_ns)
    animated = video.with_suffix(".gif")
    write_whole(animated, video_as_gif(video, width=GIF_WIDTH, fps=GIF_FPS))
    return animated


def video_as_gif(video: Path, *, width: int, fps: int) -> bytes:
    """An endless GIF of ``video`` in real time, at most ``width`` pixels wide. :raises OSError: it
    cannot be read.
    """
    from PIL import Image

    scaled = (_scaled_picture(picture, width) for picture in frames(video, fps))
    first = next(scaled)
    palette = first.quantize(COLOURS)
    # Without dithering, which would make each picture new noise, and the file several times as
    # large.
    quantized = (
        picture.quantize(palette=palette, dither=Image.Dither.NONE)
        for picture in chain([first], scaled)
    )
    content = io.BytesIO()
    pause_ms = round(1000 / fps)
    next(quantized).save(
        content, "GIF", save_all=True, append_images=quantized, duration=pause_ms, loop=0
    )
    return content.getvalue()


def frames(video: Path, fps: int) -> Iterator[Image.Image]:
    """The pictures of a video at ``fps`` pictures a second. :raises OSError: it cannot be read."""
    import av
    from PIL import Image

    try:
        with av.open(video) as container:
            due = 0.0
            for frame in container.decode(video=0):
                while frame.time is not None and frame.time >= due - 1e-6:
                    due += 1 / fps
                    yield Image.fromarray(frame.to_ndarray(format="rgb24"))
    except av.FFmpegError as error:
        raise OSError(error.errno, error.strerror, str(video)) from error


def as_video(pictures: Iterable[Image.Image], fps: int) -> bytes:
    """An MP4 of ``pictures``, all of one size."""
    import numpy as np

    return mp4(map(np.asarray, pictures), fps)


def _scaled_picture(picture: Image.Image, width: int) -> Image.Image:
    width = min(width, picture.width)
    return picture.resize((width, round(picture.height * width / picture.width)))
