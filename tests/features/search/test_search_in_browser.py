"""A search on the live page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from search_helpers import make_search_dir

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from browser_helpers import DESKTOP, IN_BROWSER, PHONE, Browser

from orchestrator.features.search.live_section import LEADERS

serving = pytest.importorskip("live_page_helpers", reason="the feature live_page is gone").serving

pytestmark = IN_BROWSER

TWO = {
    "sampler": "nsga2",
    "objective": ["eval_mean", "cost"],
    "direction": ["maximize", "minimize"],
}
TABLES = """[...document.querySelectorAll("#sections table")].map((table) => [
    table.ariaLabel, table.tBodies[0].rows.length, table.closest(".columns") !== null,
])"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.driver.quit()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize(
    ("search", "best"), [({}, "Best trials"), (TWO, "Pareto front")], ids=["best", "front"]
)
def test_the_page_of_a_search_has_its_chart_its_rungs_and_its_best_trials(
    browser: Browser,
    tmp_path: Path,
    search: dict[str, Any],
    best: str,
    size: tuple[int, int],
) -> None:
    paths = make_search_dir(tmp_path / "run", 60, search=search)
    with serving(paths.root) as server:
        browser.errors()
        browser.open(f"http://localhost:{server.port}/", size)
        browser.shows("#sections h2", "Search")
        browser.shows("#sections p", "60 of 60 trials")
        rungs, leaders = browser.run(TABLES)
        assert rungs == ["Rungs", 2, True]
        assert leaders[0] == best
        assert 0 < leaders[1] <= LEADERS
        assert leaders[2] is False
        assert browser.run("document.querySelectorAll('#sections circle').length") > 10
        assert browser.run("document.documentElement.scrollWidth") <= size[0]
        assert browser.errors() == []
        browser.driver.get("about:blank")
