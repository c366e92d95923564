"""The pictures of the live page and of the report in the documents, as Chromium shows them, from
real runs.

    python -m benchmarks.site_pictures                 # jobs/robots.toml in a temporary folder, some minutes
    python -m benchmarks.site_pictures --job-file jobs/smoke.toml --output FOLDER

The report is shown when all jobs have ended; the live page while another seed of each is trained, so
that there are previews, wide and narrow, light and dark.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.harness import ORCHESTRATOR, ROOT
from benchmarks.live_page import chromium_driver, serving
from orchestrator.core.paths import RunPaths
from orchestrator.ledger import SummaryRow, summary

SETTLED_S = 6.0
"""Time for what is drawn after the table."""
LONGEST_WAIT_S = 120.0
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


def wait_for(state: str, run_dir: Path, run: subprocess.Popen[bytes]) -> None:
    """Wait until a job of the experiment that ``run`` trains is in that state, and one that runs has a
    speed, from which the page has its ETA.
    """
    deadline = time.monotonic() + LONGEST_WAIT_S
    while not any(
        row["state"] == state and (state != "RUNNING" or row["env_steps_per_s"])
        for row in rows_of(run_dir)
    ):
        if time.monotonic() > deadline or run.poll():
            raise SystemExit(
                f"no pictures: no job of {run_dir} is {state} after {LONGEST_WAIT_S:g} s"
            )
        time.sleep(0.5)


def rows_of(run_dir: Path) -> Sequence[SummaryRow]:
    """Of its jobs; none before it has some."""
    paths = RunPaths(run_dir)
    return summary.read(paths)[0] if paths.summary_json.exists() else []


def most_have_ended(run_dir: Path) -> bool:
    """Whether two of three jobs have."""
    states = [row["state"] for row in rows_of(run_dir)]
    return 3 * sum(state not in ("PENDING", "RUNNING") for state in states) >= 2 * len(states)


@contextlib.contextmanager
def extended(job_file: Path, run_dir: Path) -> Iterator[None]:
    """The experiment of ``run_dir`` trains another seed of each job, and most of its jobs have ended."""
    command = [*ORCHESTRATOR, "run", str(job_file), "--run-dir", str(run_dir)]
    with subprocess.Popen([*command, "--set", "seeds=[0,1]"], cwd=ROOT) as run:
        try:
            wait_for("RUNNING", run_dir, run)
            while run.poll() is None and not most_have_ended(run_dir):
                time.sleep(1.0)
            if run.poll():
                raise SystemExit(
                    f"no pictures: the run of {job_file} ended with exit code {run.returncode}"
                )
            yield
        finally:
            run.terminate()


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
        command = [*ORCHESTRATOR, "run", str(job_file), "--run-dir", str(run_dir)]
        subprocess.run(command, cwd=ROOT, check=True)
        subprocess.run([*ORCHESTRATOR, "report", str(run_dir)], cwd=ROOT, check=True)
        take(REPORT, (run_dir / "report/index.html").as_uri(), output)
        with extended(job_file, run_dir), serving(run_dir) as (_, address):
            take(LIVE_PAGE, address, output)


if __name__ == "__main__":
    main()
