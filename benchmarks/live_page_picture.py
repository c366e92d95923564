"""The picture of the live page in the README: a part of the page as Chromium shows it.

    python -m orchestrator run jobs/robots.toml --detach
    python -m benchmarks.live_page_picture runs/robots --output docs/pictures/live-page.png

With ``--width 390`` as on a phone; ``--dark`` on a dark page; ``--job JOB`` with that job opened.
"""

from __future__ import annotations

import argparse
import base64
import io
import time
from pathlib import Path

from PIL import Image

from benchmarks.live_page import chromium_driver, serving

SETTLED_S = 6.0
"""Time for what is drawn after the table."""
COLOURS = 128
"""Of the picture: few are enough for a page, and keep its file small."""


def picture(address: str, *, width: int, height: int, dark: bool) -> Image.Image:
    driver = chromium_driver()
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 640}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        driver.get(address)
        time.sleep(SETTLED_S)
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.png")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1000)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--job", default="")
    options = parser.parse_args()
    with serving(options.run_dir.absolute()) as (_, port):
        address = f"http://127.0.0.1:{port}/" + (f"#job={options.job}" if options.job else "")
        image = picture(address, width=options.width, height=options.height, dark=options.dark)
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(options.output, "PNG", optimize=True)


if __name__ == "__main__":
    main()
