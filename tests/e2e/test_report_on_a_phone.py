"""The report of a run in a real browser, as wide as a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_helpers import Trained, make_run_dir

from orchestrator import report

pytest.importorskip("selenium", reason="selenium is not installed")

from browser_helpers import IN_BROWSER, PHONE, Browser

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
        browser.open(report.make(run.root).page.as_uri(), PHONE)
        cells = browser.run(LINES)
    finally:
        browser.driver.quit()
    assert [len(lines) > 1 for text, _, lines in cells if text == message] == [True]
    for text, is_number, lines in cells:
        assert all(end <= PHONE[0] for _, end in lines), text
        assert is_number or len({begin for begin, _ in lines}) <= 1, text
