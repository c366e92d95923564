"""The pictures of the live page and of the report in the documents, as Chromium shows them, from a
real run.

    python -m benchmarks.site_pictures                 # jobs/robots.toml in a temporary folder, some minutes
    python -m benchmarks.site_pictures --job-file jobs/smoke.toml --output FOLDER

The live page is shown when half of the jobs have ended and the others run or wait, wide and narrow,
light and dark; the report when all have ended.
"""

from __future__ import annotations

import argparse
import base64
import io
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.harness import ORCHESTRATOR, ROOT
from benchmarks.live_page import chromium_driver, serving
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import summary

SETTLED_S = 6.0
"""Time for what is drawn after the table."""
COLOURS = 128
"""Of a picture: few are enough for a page, and keep its file small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A picture of a page.

    :ivar name: of its file, without ``.png``.
    :ivar width: of the window in pixels, as is ``height``.
    :ivar section: ``#id`` of what is at the top; the page's beginning by default.
    """

    name: str
    width: int
    height: int
    dark: bool = False
    section: str = ""


LIVE_PAGE = (
    Shot(name="live-page", width=1280, height=1460),
    Shot(name="live-page-dark", width=1280, height=900, dark=True),
    Shot(name="live-page-phone", width=390, height=844),
    Shot(name="live-page-phone-dark", width=390, height=844, dark=True),
)
REPORT = (Shot(name="report", width=1100, height=800, section="#learning-curves"),)


def take(shots: tuple[Shot, ...], address: str, folder: Path) -> None:
    """Write the pictures of the page at ``address`` to ``folder``."""
    driver = chromium_driver()
    try:
        for shot in shots:
            image = picture(driver, address, shot)
            image.quantize(COLOURS, dither=Image.Dither.NONE).save(
                folder / f"{shot.name}.png", "PNG", optimize=True
            )
    finally:
        driver.quit()


def picture(driver: Any, address: str, shot: Shot) -> Image.Image:
    scheme = {"name": "prefers-color-scheme", "value": "dark" if shot.dark else "light"}
    screen = {
        "width": shot.width,
        "height": shot.height,
        "deviceScaleFactor": 1,
        "mobile": shot.width < 640,
    }
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.get(address + shot.section)
    time.sleep(SETTLED_S)
    if shot.section and not driver.find_elements("css selector", shot.section):
        raise SystemExit(f"no picture {shot.name}: {address} has no {shot.section}")
    answer = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")


def half_have_ended(run_dir: Path) -> bool:
    states = [row["state"] for row in summary.read(RunPaths(run_dir))[0]]
    return 2 * sum(state not in ("PENDING", "RUNNING") for state in states) >= max(1, len(states))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--job-file", type=Path, default=ROOT / "jobs/robots.toml", metavar="JOBS.toml"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs/pictures", metavar="FOLDER")
    options = parser.parse_args()
    job_file = options.job_file.absolute()
    output = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / job_file.stem
        with subprocess.Popen(
            [*ORCHESTRATOR, "run", str(job_file), "--run-dir", str(run_dir)], cwd=ROOT
        ) as run:
            try:
                while run.poll() is None and not half_have_ended(run_dir):
                    time.sleep(1.0)
                if run.poll():
                    raise SystemExit(
                        f"no pictures: the run of {job_file} ended with exit code {run.returncode}"
                    )
                with serving(run_dir) as (_, port):
                    take(LIVE_PAGE, f"http://127.0.0.1:{port}/", output)
            except BaseException:
                run.terminate()
                raise
        subprocess.run([*ORCHESTRATOR, "report", str(run_dir)], cwd=ROOT, check=True)
        take(REPORT, (run_dir / "report/index.html").as_uri(), output)


if __name__ == "__main__":
    main()
