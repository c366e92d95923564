"""The report of a run in a real browser, as wide as a desk's and a phone's."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_helpers import STEPS, Trained, make_run_dir

from orchestrator import report

pytest.importorskip("selenium", reason="selenium is not installed")

from browser_helpers import DESKTOP, IN_BROWSER, PHONE, Browser

pytestmark = IN_BROWSER

LINES = """[...document.querySelectorAll(".cards td:not(:first-child) > span")].map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return [one.innerText, one.parentElement.classList.contains("number"),
        [...range.getClientRects()].map((line) => [line.left, line.right])];
})"""
"""Of each cell: its text, whether it is a number, and where its lines begin and end."""


def test_long_texts_wrap_and_their_lines_begin_below_each_other(tmp_path: Path) -> None:
    message = "the knee fell off, as did the ankle, the hip and what was left of the other leg"
    jobs = [Trained(), Trained(seed=1, state="FAILED", message=message)]
    run = make_run_dir(tmp_path / "run", jobs)
    browser = Browser()
    try:
        browser.open(report.make(run.root).as_uri(), PHONE)
        cells = browser.run(LINES)
    finally:
        browser.driver.quit()
    assert [len(lines) > 1 for text, _, lines in cells if text == message] == [True]
    for text, is_number, lines in cells:
        assert all(end <= PHONE[0] for _, end in lines), text
        assert is_number or len({begin for begin, _ in lines}) <= 1, text


ROBOTS = """[...[...document.querySelectorAll("section")].find((one) => one.querySelector("h2").innerText === "Robots")
    .querySelectorAll("tbody tr")].map((row) => row.innerText)"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_robots_that_go_on_from_others_have_lineages_and_parents_in_sight(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """As in a pool whose children start from the policies of their parents."""
    points = [{"meta.generation": number} for number in range(3)]
    jobs = [
        Trained(case="first", name="first", point=points[0]),
        Trained(case="child", name="child", point=points[1], init="job:first-s0"),
        Trained(case="grandchild", name="grandchild", point=points[2], init="job:child-s0"),
    ]
    run = make_run_dir(tmp_path / "run", jobs)
    browser = Browser()
    try:
        browser.open(report.make(run.root).as_uri(), size)
        rows = browser.run(ROBOTS)
        width = browser.run("document.documentElement.scrollWidth")
        text = browser.run("document.body.innerText")
    finally:
        browser.driver.quit()
    assert width <= size[0]
    steps = Trained().iterations * STEPS
    for number, (row, parent) in enumerate(zip(rows, ("–", "first-s0", "child-s0"), strict=True)):
        assert f"{(number + 1) * steps:,}" in row
        assert parent in row
    assert text.count("not comparable at equal env_steps") == 2, "below both figures"
