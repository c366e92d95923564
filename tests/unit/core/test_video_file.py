"""Videos that are read picture by picture, and animated GIFs."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from PIL import Image

from orchestrator.core.files.video_file import as_video, frames, video_as_gif, write_gif
from orchestrator.core.paths import JobPaths


def film(path: Path, size: tuple[int, int] = (64, 48)) -> Path:
    path.write_bytes(as_video([Image.new("RGB", size, (200, 0, 0))] * 30, 30))
    return path


def test_a_gif_lasts_as_long_as_the_video(tmp_path: Path) -> None:
    content = video_as_gif(film(tmp_path / "a.mp4"), width=32, fps=10)
    with Image.open(io.BytesIO(content)) as image:
        assert (image.size, image.info["loop"]) == ((32, 24), 0)
        image.seek(image.n_frames - 1)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=r"a\.gif"):
        next(frames(tmp_path / "a.gif", 10))


def test_the_video_that_was_made_last_is_written_as_a_gif_beside_it(tmp_path: Path) -> None:
    film(tmp_path / "video.mp4")
    film(tmp_path / "other.mp4")
    last = film(tmp_path / "video-512.mp4", size=(32, 32))
    os.utime(last, (2**32, 2**32))
    written = write_gif(JobPaths(tmp_path / "a-s0"), tmp_path)
    assert written == tmp_path / "video-512.gif"
    with Image.open(written) as image:
        assert image.size == (32, 32)
