"""The report's search page in a real browser, as wide as a desk's and a phone's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_helpers import film_strip
from search_helpers import make_search_dir

from orchestrator import report

pytest.importorskip("selenium", reason="selenium is not installed")

from browser_helpers import DESKTOP, IN_BROWSER, PHONE, Browser

pytestmark = IN_BROWSER

AXES = {"speed": {"low": 0, "high": 6, "cells": 6}, "height": {"low": 0, "high": 4, "cells": 4}}
SEARCHES = {
    "archive": {"sampler": "map-elites", "measures": AXES, "start": "nearest"},
    "front": {
        "sampler": "nsga2",
        "objective": ["eval_mean", "cost"],
        "direction": ["maximize", "minimize"],
    },
}
OF_EVERY_SEARCH = {"Search": 1, "Space": 3, "Rungs": 1, "Failed trials": 0}
FIGURES = {
    "archive": {**OF_EVERY_SEARCH, "Archive": 1},
    "front": {**OF_EVERY_SEARCH, "Space": 4, "Pareto front": 1},  # two objectives
}
"""How many figures each section has."""
DRAWN = """Object.fromEntries([...document.querySelectorAll("section")].map((section) => [
    section.querySelector("h2").innerText,
    [...section.querySelectorAll("figure img")].map((image) => {
        const box = image.getBoundingClientRect();
        return [box.width, box.height];
    }),
]))"""
TOO_WIDE = """[...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll > *")
    && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((one) => one.outerHTML)"""
"""What reaches beyond the window, other than what can be scrolled by itself."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.driver.quit()


@pytest.fixture(scope="module", params=SEARCHES)
def page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """What is searched, and the page."""
    root = tmp_path_factory.mktemp(request.param)
    search = SEARCHES[request.param]
    run = make_search_dir(root / "run", 60, search=search)
    if request.param == "archive":
        best = report.compose(run.root).numbers["search"]["best"]
        for trial in best[:8]:
            run.job(f"walker-t{trial:05d}-s0").preview.write_bytes(film_strip())
    return request.param, report.make(run.root)


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_section_is_drawn_and_nothing_is_wider_than_the_window(
    browser: Browser, page: tuple[str, Path], size: tuple[int, int]
) -> None:
    kind, file = page
    browser.errors()
    browser.open(file.as_uri(), size)
    drawn = browser.run(DRAWN)
    assert {
        title: len(figures) for title, figures in drawn.items() if title in FIGURES[kind]
    } == FIGURES[kind]
    for title, figures in drawn.items():
        for width, height in figures:
            assert width > 300, title
            assert height > 100, title
    assert browser.run("document.documentElement.scrollWidth") <= size[0]
    assert browser.run(TOO_WIDE) == []
    pictures = browser.run("[...document.images].map((one) => one.complete && one.naturalWidth)")
    assert all(pictures)
    assert pictures
    assert browser.errors() == []
