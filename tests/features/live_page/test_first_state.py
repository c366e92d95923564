"""The state in the HTML of the live page, and the stream that goes on after it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from live_page_helpers import Viewer, plant, running, serving
from report_helpers import Trained, make_run_dir

from orchestrator.core.job import Paused

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
