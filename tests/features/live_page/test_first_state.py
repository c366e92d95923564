"""The state in the HTML of the live page, and the stream that goes on after it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import html
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from live_page_helpers import Viewer, plant, running, serving
from report_helpers import Trained, make_run_dir

from orchestrator.core.job import Paused
from orchestrator.features.live_page import feed
from orchestrator.features.live_page.board import Changes
from orchestrator.features.live_page.feed import Feed

HOSTILE = "</script></noscript><script>alert(1)</script><!-- <b onclick='x'>\"&amp;"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_the_page_has_what_its_stream_would_send_first(tmp_path: Path) -> None:
    paths = make_run_dir(
        tmp_path / "run", [Trained(), Trained(name="other", state="FAILED", message=HOSTILE)]
    )
    with serving(paths.root) as server, Viewer(server.port) as viewer:
        viewer.next()
        first = server.first_state()
        assert first is not None
        assert first["state"]["put"] == viewer.pieces
        assert first["state"]["grow"] == viewer.lists
        assert HOSTILE in first["state"]["put"]["job:j1-s0"]


def test_the_stream_goes_on_after_what_the_page_has(tmp_path: Path) -> None:
    with running(tmp_path / "run") as (paths, ledger), serving(paths.root) as server:
        first = server.first_state()
        assert first is not None
        known = f"?board={first['clock']['board']}&version={first['state']['version']}"
        with Viewer(server.port, f"/api/this/events{known}") as viewer:
            ledger.set_state("j1-s0", Paused())
            ledger.commit()
            message = viewer.until(lambda one: "job:j1-s0" in one.pieces)
            assert "job:j0-s0" not in viewer.pieces, "it has not changed"
            assert message["version"] > first["state"]["version"]
        for other in (
            "?board=other&version=1",
            known + "99",
            known.replace("version=", "version=-"),
        ):
            with Viewer(server.port, f"/api/this/events{other}") as viewer:
                viewer.next()
                assert "job:j0-s0" in viewer.pieces, "everything"
        assert server.request("/api/this/events?version=x")[0] == 400


class Page(HTMLParser):
    """What a browser makes of a page: its elements, and its texts but for those of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] != "script":
            self.texts.append(data)


def test_texts_of_strangers_are_texts_in_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    root = tmp_path / "<i>run"
    make_run_dir(root, [Trained(state="FAILED", message=HOSTILE)])
    with serving(root) as server, serving(tmp_path) as of_folder:
        own = Page(server.request("/")[2].decode())
        folder = Page(of_folder.request("/")[2].decode())
    assert any(HOSTILE in text for text in own.texts)
    assert any("<i>run" in text for text in own.texts)
    assert any("<i>run" in text for text in folder.texts)
    for page in (own, folder):
        scripts = [attributes.get("src") for tag, attributes in page.elements if tag == "script"]
        assert scripts == ["./assets/live.js", None], "the data is no program"
        assert not {"b", "i"} & {tag for tag, _ in page.elements}


def test_without_javascript_jobs_experiments_and_their_states_can_be_read(tmp_path: Path) -> None:
    jobs = [
        Trained(name="good"),
        Trained(name="bad", state="FAILED", message="the knee fell off"),
        Trained(name="later", state="PENDING"),
    ]
    make_run_dir(tmp_path / "runs/one", jobs)
    make_run_dir(tmp_path / "runs/two", [Trained()])
    with serving(tmp_path / "runs") as server:
        text = server.request("/")[2].decode()
        listed = [
            re.findall(r">([^<>\n]+)<", item)[:3]
            for item in re.findall(r"<li>.*?</li>", text, re.DOTALL)
        ]
        assert sorted(listed) == [
            ["one", "interrupted", "1 failed, 1 pending, 1 succeeded"],
            ["two", "finished", "1 succeeded"],
        ]
        address = next(link for link in re.findall(r'href="(run/one[^"]*)"', text))
        text = server.request(f"/{address}")[2].decode()
    rows = re.findall(r"<tr><th scope=.row.>(.*?)</th><td[^>]*>(.*?)</td>", text)
    assert rows == [
        ("j1-s0 <small>the knee fell off</small>", "failed"),
        ("j2-s0", "pending"),
        ("j0-s0", "succeeded"),
    ]
    assert "Interrupted: no supervisor is running." in text


def test_what_is_in_the_page_is_as_of_a_time_and_not_live(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained()])
    before = time.time() - 1.0  # the page has whole seconds
    with serving(paths.root) as server:
        text = server.request("/")[2].decode()
    link = re.search(r'<span id="link" role="status">(.*?)</span>', text)
    assert link is not None
    read_at = datetime.datetime.strptime(f"{link[1]}+0000", "as of %Y-%m-%d %H:%M:%S UTC%z")
    assert before <= read_at.timestamp() <= time.time()


def test_a_page_without_a_run_says_so_in_its_html(tmp_path: Path) -> None:
    with serving(tmp_path / "later") as server:
        assert b"has not begun; this page waits for it." in server.request("/")[2]


def test_an_experiment_that_is_not_there_is_named_with_a_link_to_the_others(tmp_path: Path) -> None:
    make_run_dir(tmp_path / "runs/one", [Trained()])
    with serving(tmp_path / "runs") as server:
        status, _, body = server.request("/api/gone-0123456789/events")
        assert (status, '"gone-0123456789"' in body.decode()) == (404, True)
        page = html.unescape(server.request("/run/gone-0123456789")[2].decode())
    assert body.decode().strip() in page
    assert '<a href="../">All experiments</a>' in page


def test_no_data_is_in_a_page_that_anyone_may_open(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "secret", [Trained()])
    with serving(paths.root, names=["robots.example.org"]) as server:
        assert server.first_state() is None
        page = server.request("/", authorization=f"Bearer {server.token}")[2]
        assert b"secret" not in page
    with serving(paths.root) as server:
        assert server.first_state(sec_fetch_site="cross-site") is None
        assert server.first_state(sec_fetch_site="none") is not None
        assert b"secret" not in server.request("/", sec_fetch_site="cross-site")[2]


def test_a_page_is_not_held_up_by_a_reading_that_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed, "FIRST_LOOK_S", 0.05)
    monkeypatch.setattr(feed, "READING", dataclasses.replace(feed.READING, every_s=0.0))

    async def look() -> tuple[object, object, list[str]]:
        may_read = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> Changes:
            asyncio.run_coroutine_threadsafe(may_read.wait(), loop).result()
            changes = Changes()
            changes.set("a", 1)
            return changes

        slow = Feed(lambda: SimpleNamespace(read=read))
        early = await slow.first_look()
        may_read.set()
        monkeypatch.setattr(feed, "FIRST_LOOK_S", 60.0)
        late = await slow.first_look()
        assert late is not None
        async with contextlib.aclosing(slow.messages(late.board, 1)) as messages:
            may_read.clear()
            monkeypatch.setattr(feed, "HEARTBEAT_S", 0.01)
            sent = [await anext(messages)]
            may_read.set()
        return early, late, sent

    early, late, sent = asyncio.run(look())
    assert early is None
    assert json.loads(late.state) == {"version": 1, "put": {"a": 1}, "grow": {}}
    assert sent == [": alive\n\n"], "nothing that the page has"
