"""The live page in a real browser: Debian's Chromium without a window, driven by Selenium."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_helpers import HOPPER, Run, wait_until, write_experiment
from PIL import Image
from report_helpers import Trained, film_strip, make_run_dir

from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from browser_helpers import DESKTOP, IN_BROWSER, PHONE, Browser
from live_page_helpers import Served, plant, serving
from selenium.webdriver.common.keys import Keys

from orchestrator.core.files.video_file import as_video

pytestmark = IN_BROWSER


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    made = Browser()
    yield made
    made.driver.quit()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@contextlib.contextmanager
def page(root: Path, *browsers: Browser) -> Iterator[tuple[str, Served]]:
    """The page of a run directory and its server. Its browsers must not complain before that
    ends."""
    with serving(root) as server:
        for one in browsers:
            one.errors()
        yield f"http://localhost:{server.port}/", server
        for one in browsers:
            assert one.errors() == []
            one.driver.get("about:blank")


def test_an_experiment_whose_supervisor_is_killed_and_comes_back(
    browser: Browser, tmp_path: Path
) -> None:
    jobs = write_experiment(
        tmp_path,
        {"name": "hopper", "xml": str(HOPPER), "task": "forward", "total_timesteps": 30_000},
    )
    root = tmp_path / "runs/tiny"
    with page(root, browser) as (address, _):
        browser.open(address)
        browser.shows("#condition", "has not begun")
        with Run(jobs, cwd=tmp_path) as run:
            browser.shows("#condition", "Supervised by")
            browser.shows('#jobs tr[data-id="hopper-s0"]', "training")
            before = browser.row("hopper-s0")
            wait_until(lambda: browser.row("hopper-s0") != before, "a row that changes")
            browser.shows("#curves", "hopper")
            browser.shows("#schedule", "CPU")
            browser.run("location.hash = '#job=hopper-s0'")
            browser.shows("#panel .log", "env_steps")
            browser.run("document.getElementById('panel').close()")
            holder = run_directory.holder(RunPaths(root))
            assert holder is not None
            os.kill(holder.pid, signal.SIGKILL)
            run.popen.wait()
        browser.shows("#condition", "killed")
        browser.shows("#note", "resumes it")
        browser.shows('#jobs tr[data-id="hopper-s0"]', "pending")
        with Run(jobs, cwd=tmp_path) as run:
            browser.shows("#condition", "Supervised by")
            run.signal(signal.SIGINT)
            assert run.end() in (0, 130)
        browser.shows(
            "#condition",
            "no supervisor is running"
            if not RunPaths(root).job("hopper-s0").model.exists()
            else "ended",
        )


def test_a_page_that_waits_for_a_run_becomes_that_of_a_folder(
    browser: Browser, tmp_path: Path
) -> None:
    with page(tmp_path / "runs", browser) as (address, _):
        browser.open(address)
        browser.shows("#condition", "has not begun")
        make_run_dir(tmp_path / "runs/one", [Trained()])
        browser.shows("#runs", "one")


def test_without_javascript_jobs_and_their_states_are_shown(
    browser: Browser, tmp_path: Path
) -> None:
    jobs = [Trained(), Trained(name="bad", state="FAILED", message="<b>the knee</b> fell off")]
    make_run_dir(tmp_path / "runs/one", jobs)
    disable = "Emulation.setScriptExecutionDisabled"
    with page(tmp_path / "runs", browser) as (address, _):
        browser.driver.execute_cdp_cmd(disable, {"value": True})
        try:
            browser.driver.get(address)
            assert "1 failed, 1 succeeded" in browser.driver.find_element("id", "experiments").text
            browser.driver.find_element("css selector", ".runs a").click()
            rows = browser.driver.find_elements("css selector", "noscript tr")
            texts = [row.text for row in rows]
            assert texts[1].startswith("j1-s0")
            assert "<b>the knee</b> fell off" in texts[1]
            assert "failed" in texts[1]
            assert "succeeded" in texts[2]
        finally:
            browser.driver.execute_cdp_cmd(disable, {"value": False})


def test_1000_jobs(browser: Browser, tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run",
        [
            Trained(
                name=f"r{n % 250}",
                seed=n,
                iterations=2,
                state="FAILED" if n == 700 else "SUCCEEDED",
            )
            for n in range(1000)
        ],
    )
    with page(paths.root, browser) as (address, _):
        browser.open(address)
        browser.shows("#jobs-note", "1,000 of 1,000 jobs")
        rows = "document.querySelectorAll('#jobs tbody tr').length"
        assert browser.run(rows) == 30
        assert "failed" in browser.run("document.querySelector('#jobs tbody tr').innerText"), (
            "what failed comes first"
        )
        browser.run("document.getElementById('more-jobs').click()")
        assert browser.run(rows) == 530
        field = browser.driver.find_element("id", "filter")
        field.send_keys("j12-s knee")
        assert browser.run(rows) == 0
        field.send_keys(*[Keys.BACKSPACE] * 5)
        assert browser.run(rows) == 4
        browser.run("document.querySelectorAll('#jobs th button')[2].click()")
        assert (
            browser.run("document.querySelectorAll('#jobs th')[2].getAttribute('aria-sort')")
            == "descending"
        )
        shown = browser.run(
            "[...document.querySelectorAll('#jobs tbody td:nth-child(3)')].map((cell) => cell.innerText)"
        )
        returns = [float(text.split("→")[1].replace(",", "")) for text in shown]
        assert returns == sorted(returns, reverse=True)
        field.send_keys(Keys.ARROW_DOWN)
        assert browser.run("document.activeElement.innerText").startswith("j12-s")


RIGHT_EDGES = "[...document.querySelectorAll('#jobs td.state')].map((one) => one.getBoundingClientRect().right)"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_window(
    browser: Browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    long = Trained(
        name="a",
        state="FAILED",
        message="no such file: " + "/very/long/path" * 40,
        suffix="-" + "x" * 60,
    )
    pictured = [
        Trained(name="b", attempts=3, preview=film_strip),
        Trained(name="c", seed=1, preview=film_strip),
    ]
    paths = make_run_dir(tmp_path / ("run" * 15), [long, *pictured])
    with page(paths.root, browser) as (address, _):
        browser.open(address, size)
        browser.shows("#jobs", "failed")
        browser.shows("#schedule", "CPU")
        browser.run("document.getElementById('robots').scrollIntoView()")
        pictures = "[...document.querySelectorAll('#robots img')].filter((one) => one.naturalWidth > 0).length"
        wait_until(lambda: browser.run(pictures) == len(pictured), "the pictures of the robots")
        assert browser.run("document.documentElement.scrollWidth") <= size[0]
        assert browser.run(f"Math.max(...{RIGHT_EDGES})") <= size[0], "every job shows its state"
        browser.run("document.querySelector('#jobs tbody a').click()")
        browser.shows("#panel", "very/long")
        assert browser.run("document.getElementById('panel').scrollWidth") <= size[0]


def test_pictures_and_videos_that_needed_the_token_are_let_go(
    browser: Browser, tmp_path: Path
) -> None:
    jobs = [Trained(name=name, preview=film_strip) for name in ("a", "b")]
    paths = make_run_dir(tmp_path / "run", jobs)
    for job_id in ("j0-s0", "j1-s0"):
        (paths.job(job_id).root / "video.mp4").write_bytes(b"no video")
    counting = """
        window.kept = new Set();
        const make = URL.createObjectURL, revoke = URL.revokeObjectURL;
        URL.createObjectURL = (blob) => { const url = make(blob); window.kept.add(url); return url; };
        URL.revokeObjectURL = (url) => { window.kept.delete(url); revoke(url); };
    """
    with serving(paths.root, host="0.0.0.0") as server:
        added = browser.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": counting}
        )
        try:
            browser.open(f"http://localhost:{server.port}/#token={server.token}")
            browser.shows("#robots", "j0-s0")
            for job_id in ("j0-s0", "j1-s0"):
                browser.run("void (location.hash = arguments[0])", f"#job={job_id}")
                has_video = "document.querySelector('#panel video')?.src.startsWith('blob:')"
                wait_until(lambda script=has_video: browser.run(script), "a video")
                wait_until(
                    lambda: browser.run("window.kept.size") == 1,
                    "one video is kept, and no picture",
                )
            browser.run("document.getElementById('panel').close()")
            wait_until(lambda: browser.run("window.kept.size") == 0, "nothing is kept")
        finally:
            browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
            browser.driver.get("about:blank")


def test_what_features_show_is_a_section_with_charts_and_tables(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    paths = make_run_dir(tmp_path / "run", [Trained()])
    with page(paths.root, browser) as (address, _):
        browser.open(address)
        browser.shows("#feature-0 tbody tr", "j0-s0")
        browser.shows("#parts", "The garden")
        rows = "[...document.querySelectorAll('#feature-0 tbody tr')]"
        texts = "[...row.cells].map((one) => one.innerText.trim())"
        assert browser.run(f"{rows}.map((row) => {texts})") == [
            ["apple", "–", "3", "j0-s0", "1.5k"],
            ["pear", "1.3", "6", "", "–"],
            ["–", "ripe", "–", "–", "–"],
        ]
        bars = "[...document.querySelectorAll('#feature-0 .rung')].map((one) => one.style.width)"
        assert browser.run(bars) == ["2.5rem", "5rem"]
        circles = "#feature-0 svg[aria-label='Fruits by day'] circle"
        assert browser.run(f"document.querySelectorAll({circles!r}).length") == 3
        title = f"document.querySelector({circles!r} + ' title').textContent"
        assert browser.run(title) == "day 1: 2"
        names = "[...document.querySelectorAll('#feature-0 .legend .series')]"
        samples = "one.innerText, one.querySelector('svg').firstChild.localName"
        assert browser.run(f"{names}.map((one) => [{samples}])") == [
            ["day", "circle"],
            ["most so far", "path"],
        ]
        height = "Math.round(document.querySelector('#feature-0 .chart svg').clientHeight)"
        assert browser.run(height) == 220
        browser.run("document.querySelector('#feature-0 a').click()")
        browser.shows("#panel-title", "j0-s0")


def test_a_video_plays_and_that_of_a_retried_job_is_shown_in_its_place(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.features.live_page.run_source.MEDIA_EVERY_S", 0.5)
    paths = make_run_dir(tmp_path / "run", [Trained(preview=film_strip)])
    video = paths.job("j0-s0").root / "video.mp4"
    video.write_bytes(as_video([Image.new("RGB", (64, 48), "green")] * 30, 10))
    with page(paths.root, browser) as (address, _):
        browser.open(f"{address}#job=j0-s0")
        wait_until(
            lambda: browser.run("document.querySelector('#panel video')?.readyState") == 4,
            "a video",
        )
        assert browser.run("document.querySelector('#panel video').videoWidth") == 64
        browser.driver.find_element("css selector", "#panel video").send_keys(Keys.SPACE)
        time_shown = "document.querySelector('#panel video').currentTime"
        wait_until(lambda: browser.run(time_shown) > 0.2, "a video that plays")
        thumbnail = "document.querySelector('#robots img').src"
        before = browser.run(thumbnail)
        again = time.time() + 5.0
        video.write_bytes(as_video([Image.new("RGB", (32, 48), "red")] * 10, 10))
        os.utime(video, (again, again))
        wait_until(
            lambda: browser.run("document.querySelector('#panel video').videoWidth") == 32,
            "the new video",
        )
        wait_until(lambda: browser.run(thumbnail) != before, "the new picture")


def test_the_page_can_be_used_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(name="walker"), Trained(name="hopper", state="FAILED")]
    )
    with page(paths.root, browser) as (address, _):
        browser.open(address)
        browser.shows("#jobs", "failed")

        def press(*keys: str) -> str:
            """Returns what has the focus then."""
            browser.driver.switch_to.active_element.send_keys(*keys)
            return str(browser.run("document.activeElement.innerText || document.activeElement.id"))

        assert press(Keys.TAB) == "Skip to the jobs"
        assert press(Keys.ENTER, Keys.TAB) == "job", "the first heading of the table"
        assert press(Keys.ENTER) == "job"
        assert (
            browser.run("document.querySelector('#jobs th').getAttribute('aria-sort')")
            == "ascending"
        )
        assert press("/") == "filter"
        assert press("j1", Keys.ARROW_DOWN) == "j1-s0"
        assert press(Keys.ENTER) != "j1-s0"
        browser.shows("#panel-title", "j1-s0")
        assert browser.run("document.getElementById('panel').contains(document.activeElement)"), (
            "not on what is behind"
        )
        assert press(Keys.ESCAPE) == "j1-s0", "where it was"
        assert not browser.run("document.getElementById('panel').open")
        assert press("/", Keys.ESCAPE) != "filter"
        assert browser.run("document.getElementById('filter').value") == ""
        failed = browser.driver.find_element("css selector", "#states [data-state=FAILED]")
        failed.send_keys(Keys.SPACE)
        assert browser.run("document.querySelectorAll('#jobs tbody tr').length") == 1
        assert browser.run("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_previews_are_in_the_table(browser: Browser, tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(preview=film_strip), Trained(name="other", state="PENDING")]
    )
    picture = "document.querySelector('#jobs tr[data-id=\"j0-s0\"] img')"
    for names in ((), ("robots.example.org",)):
        with serving(paths.root, names=names) as server:
            browser.errors()
            browser.open(f"http://localhost:{server.port}/#token={server.token}")
            wait_until(lambda: browser.run(f"{picture}?.naturalWidth > 0"), "a picture")
            assert browser.run("document.querySelectorAll('#jobs img').length") == 1
            browser.run(f"{picture}.click()")
            browser.shows("#panel-title", "j0-s0")
            assert browser.errors() == []
            browser.driver.get("about:blank")
