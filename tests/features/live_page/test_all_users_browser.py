"""The page of `serve --all-users` in a real browser, with 200 experiments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from browser_helpers import DESKTOP, IN_BROWSER, PHONE, Browser
from command_helpers import wait_until
from live_page_helpers import serving
from selenium.webdriver.common.keys import Keys
from user_helpers import ANN, ROW, Acting, only_root

from orchestrator.experiment.directory import run_index
from orchestrator.machine import cpu_holders
from orchestrator.machine.cpu_holders import holders_folder

pytestmark = [*IN_BROWSER, only_root]

STATES = ("PENDING", "PAUSED", "SUCCEEDED")
MANY = 200
TABLE = "[...document.querySelectorAll('#runs tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"

NATURALLY_SORTED = "arguments[0].toSorted((a, b) => a.localeCompare(b, 'en', { numeric: true }))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.driver.quit()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A machine with 199 experiments of root, and one of Ann, which trains: by that process."""
    for name, folder in {"XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    shared = tmp_path / "shared"
    shared.mkdir()
    for path in (shared, *shared.parents[: len(shared.parents) - 2]):
        path.chmod(path.stat().st_mode | 0o055)
    monkeypatch.setenv("ORCHESTRATOR_CPU_HOLDERS", str(shared / "cpu-holders"))
    assert cpu_holders.prepare(holders_folder()) is None
    for number in range(MANY):
        run_dir = shared / ("the-walk-of-ann" if number == 0 else f"run{number}")
        run_dir.mkdir()
        (run_dir / "supervisor.lock").touch()
        rows = [ROW | {"state": STATES[number % 3]}] * 3
        (run_dir / "summary.json").write_text(json.dumps(rows if number else [ROW]))
        if number:
            run_index.note(run_dir, run_dir.name)
        for path in (run_dir, *run_dir.iterdir()):
            os.chown(path, *((0, 0) if number else (ANN, ANN)))
    with Acting(ANN, shared / "the-walk-of-ann", {0: 1, 1: 2, 70: 1, 72: 1}) as ann:
        yield ann.pid


def press(browser: Browser, *keys: str) -> str:
    """Returns what has the focus then."""
    browser.driver.switch_to.active_element.send_keys(*keys)
    return str(browser.run("document.activeElement.innerText || document.activeElement.id"))


def test_200_experiments_are_filtered_sorted_and_opened_with_the_keyboard(
    browser: Browser, machine: int
) -> None:
    with serving(None, all_users=True) as server:
        browser.errors()
        browser.open(f"http://localhost:{server.port}/#token={server.token}")
        wait_until(lambda: len(browser.run(TABLE)) >= MANY, "all experiments")
        whole = len(browser.run(TABLE))  # the machine may have others
        [of_ann] = [row for row in browser.run(TABLE) if row[0] == "the-walk-of-ann"]
        assert of_ann[:5] == ["the-walk-of-ann", "▶ running", f"uid {ANN}", "1 running", "4"]
        assert (of_ann[5], of_ann[-1]) == ("0-1, 70, 72", f"pid {machine}")
        held = {0, 1, 70, 72}.intersection(range(os.cpu_count() or 1))
        assert f"{len(held)} / " in browser.text("#totals")
        assert "sudo -u" in browser.text("#note")
        assert press(browser, "/") == "filter"
        press(browser, "run1 interrupted")
        shown = browser.run(TABLE)
        assert {row[1] for row in shown} == {"! interrupted"}
        assert browser.text("#runs-note") == f"{len(shown)} of {whole} experiments"
        assert press(browser, Keys.ARROW_DOWN, Keys.ARROW_DOWN) == shown[1][0]
        press(browser, "/")
        press(browser, Keys.ESCAPE)
        assert press(browser, "/", "the-walk", Keys.ARROW_DOWN) == "the-walk-of-ann", "no link"
        press(browser, "/")
        press(browser, Keys.ESCAPE)
        assert len(browser.run(TABLE)) == whole
        button = "document.querySelector('#runs th button')"
        browser.run(f"void {button}.focus()")
        for order in ("ascending", "descending"):
            assert press(browser, Keys.ENTER) == "experiment"
            assert browser.run(f"{button}.parentElement.ariaSort") == order
        names = [row[0] for row in browser.run(TABLE)]
        assert names == browser.run(NATURALLY_SORTED, names)[::-1]
        jobs = "[...document.querySelectorAll('#runs th')].find((one) => one.innerText === 'jobs')"
        browser.run(f"void {jobs}.firstElementChild.click()")
        assert browser.run(f"{jobs}.ariaSort") == "descending", "the most jobs first"
        paused = browser.driver.find_element("css selector", "#states [data-state=paused]")
        paused.send_keys(Keys.SPACE)
        assert {row[1] for row in browser.run(TABLE)} == {"‖ paused"}
        assert press(browser, "/", "run70", Keys.ARROW_DOWN) == "run70"
        assert browser.errors() == []
        press(browser, Keys.ENTER)
        wait_until(lambda: browser.text("#up") == "All experiments", "the page of one")
        browser.driver.get("about:blank")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_experiment_is_wider_than_the_window(
    browser: Browser, machine: int, size: tuple[int, int]
) -> None:
    with serving(None, all_users=True) as server:
        browser.open(f"http://localhost:{server.port}/#token={server.token}", size)
        browser.shows("#runs", "the-walk-of-ann")
        assert browser.run("document.documentElement.scrollWidth") <= size[0]
        edges = "[...document.querySelectorAll('#runs td')].map((one) => one.getBoundingClientRect().right)"
        assert browser.run(f"Math.max(...{edges})") <= size[0]
        browser.driver.get("about:blank")
