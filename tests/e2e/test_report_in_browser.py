"""The report of a run in a real browser, as wide as a desk's and a phone's."""

from __future__ import annotations

import json
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
        browser.open(report.make(run.root).as_uri(), PHONE)
        cells = browser.run(LINES)
    finally:
        browser.driver.quit()
    assert [len(lines) > 1 for text, _, lines in cells if text == message] == [True]
    for text, is_number, lines in cells:
        assert all(end <= PHONE[0] for _, end in lines), text
        assert is_number or len({begin for begin, _ in lines}) <= 1, text


CUT_OFF = """[...document.querySelectorAll(".scroll:has(table)")].filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.innerText)"""


@pytest.mark.parametrize("size", [(1280, 900), PHONE], ids=["desktop", "phone"])
def test_no_table_is_wider_than_the_window(tmp_path: Path, size: tuple[int, int]) -> None:
    """With measures, several seeds, a matrix and lineages."""
    measures = {"distance_m": {"mean": 3.512}, "cost_of_transport": {"mean": 20.1}}
    jobs = [
        Trained(
            name="quadruped",
            case=f"quadruped-lr{rate}",
            seed=seed,
            point={"ppo.learning_rate": rate, "ppo.gamma": 0.99},
            init=None if rate == 0.001 else f"job:quadruped-lr0.001-s{seed}",
        )
        for rate in (0.001, 0.0003)
        for seed in range(3)
    ]
    run = make_run_dir(tmp_path / "run", jobs)
    for job in jobs:
        evaluation = {"deterministic": {"mean": 1234.5, "std": 10.0, "measures": measures}}
        run.job(job.job_id(0)).eval.write_text(json.dumps(evaluation))
    browser = Browser()
    try:
        browser.open(report.make(run.root).as_uri(), size)
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        cut_off = browser.run(CUT_OFF)
        width = browser.run("document.documentElement.scrollWidth")
    finally:
        browser.driver.quit()
    assert cut_off == []
    assert width <= size[0]
