"""``python -m benchmarks.gallery``: small GIFs, and the page of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import gallery
from orchestrator.core.files.mp4 import mp4

pytestmark = pytest.mark.nightly


def test_a_gif_is_made_smaller_until_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (3, 240, 320, 3), dtype=np.uint8)
    video = tmp_path / "video.mp4"
    video.write_bytes(mp4(iter(pictures), 12))
    largest = gallery.small_gif(video)
    monkeypatch.setattr(gallery, "MOST_BYTES", len(largest) - 1)
    assert len(gallery.small_gif(video)) < len(largest)
    monkeypatch.setattr(gallery, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="expected at most 100"):
        gallery.small_gif(video)


def test_the_page_has_a_row_for_each_robot() -> None:
    rows = [{"name": "hopper", "task": "forward", "env_steps": 307_200, "eval_mean": 1234.5}]
    assert gallery.page(rows).splitlines()[-1] == (
        "| ![hopper](pictures/gallery/hopper.gif) | hopper | [`forward`](tasks.md) | 307,200 | 1,234 |"
    )


def test_the_pictures_of_the_page_are_there_and_small() -> None:
    pictures = sorted(gallery.PICTURES.glob("*.gif"))
    named = [line for line in gallery.PAGE.read_text().splitlines() if ".gif" in line]
    assert len(pictures) == len(named) == 12
    assert max(path.stat().st_size for path in pictures) <= gallery.MOST_BYTES
