"""The picture of robots at the top of the README: a frame of each robot's video, in rows.

python -m orchestrator run jobs/robots.toml
for job in quadruped hopper dog; do python -m orchestrator play runs/robots $job --video; done
python -m benchmarks.robot_pictures runs/robots quadruped hopper dog --output docs/pictures/robots.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import av
from PIL import Image

WIDTH, HEIGHT, GAP = 250, 188, 4
COLUMNS = 4
CUT = 0.12
"""Share of the width and height that is cut off on every side, because a camera shows the way around the robot too."""


def frame(video: Path, at_s: float) -> Image.Image:
    """The picture ``at_s`` seconds after the start of a video, or its last one."""
    with av.open(video) as container:
        for picture in container.decode(video=0):
            if picture.time is not None and picture.time >= at_s:
                break
    image = Image.fromarray(picture.to_ndarray(format="rgb24"))
    left, top = image.width * CUT, image.height * CUT
    box = (left, top, image.width - left, image.height - top)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS, box=box)


def in_rows(images: list[Image.Image]) -> Image.Image:
    rows = -(-len(images) // COLUMNS)
    size = (COLUMNS * (WIDTH + GAP) - GAP, rows * (HEIGHT + GAP) - GAP)
    whole = Image.new("RGB", size, "white")
    for number, image in enumerate(images):
        row, column = divmod(number, COLUMNS)
        whole.paste(image, (column * (WIDTH + GAP), row * (HEIGHT + GAP)))
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("jobs", nargs="+", metavar="JOB[@SECONDS]", help="job, and the time in its video (4 s)")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png")
    options = parser.parse_args()
    images = []
    for job in options.jobs:
        name, _, at_s = job.partition("@")
        [video] = options.run_dir.glob(f"jobs/{name}-s0/video.mp4")
        images.append(frame(video, float(at_s or 4.0)))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    in_rows(images).save(options.output, "PNG", optimize=True)


if __name__ == "__main__":
    main()
