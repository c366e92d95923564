"""A real browser for tests: Debian's Chromium without a window, driven by Selenium."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from command_helpers import wait_until
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
DESKTOP, PHONE = (1280, 900), (390, 844)
IN_BROWSER = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no browser: apt-get install chromium chromium-driver",
    ),
]
"""Marks of the modules that need it."""


class Browser:
    """A window of Chromium of its own."""

    def __init__(self, *arguments: str) -> None:
        """:param arguments: of Chromium, beside those that all tests need."""
        assert CHROMIUM is not None
        assert DRIVER is not None
        options = Options()
        options.binary_location = CHROMIUM
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            *arguments,
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(DRIVER))

    def open(self, address: str, size: tuple[int, int] = DESKTOP) -> None:
        self.resize(size)
        self.driver.get(
            "about:blank"
        )  # an address that differs in its fragment alone would not be loaded again
        self.driver.get(address)
        # On a busy machine `get` may return for the empty page, with half of this one there.
        wait_until(
            lambda: (
                self.run("location.href") != "about:blank"
                and self.run("document.readyState") == "complete"
            ),
            f"{address} is loaded",
        )

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def run(self, script: str, *values: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *values)

    def text(self, selector: str) -> str:
        return str(self.run("document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def row(self, job_id: str) -> str:
        return self.text(f'#jobs tr[data-id="{job_id}"]')

    def shows(self, selector: str, text: str) -> None:
        wait_until(
            lambda: text in self.text(selector),
            f"{text} in {selector}, which is: {self.text(selector)}",
        )

    def errors(self) -> list[str]:
        """What the console has shown since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
