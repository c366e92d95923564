"""The live page behind a real nginx, with the configuration that docs/live-page.md gives."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browser_helpers import Browser

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from command_helpers import PATIENCE_S, REPOSITORY, wait_until
from live_page_helpers import Served, Viewer, running, serving
from report_helpers import Trained, film_strip, make_run_dir

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
DOCUMENT = (REPOSITORY / "docs/live-page.md").read_text(encoding="utf-8")
DOCUMENTED = re.search(r"^```nginx\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
SERVE = re.search(r"orchestrator serve \S+ --name (\S+)", DOCUMENT)
assert DOCUMENTED is not None
assert SERVE is not None
NAME = SERVE[1]
PATH = "/orchestrator"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(NGINX is None, reason="no nginx: apt-get install nginx"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@contextlib.contextmanager
def nginx(folder: Path, port: int, more: str = "") -> Iterator[int]:
    """The port of an nginx with the documented configuration.

    :param port: of the server behind it.
    :param more: beside the documented location.
    """
    assert NGINX is not None
    assert DOCUMENTED is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        own_port = free.getsockname()[1]
    location = DOCUMENTED[1].replace("127.0.0.1:8711", f"127.0.0.1:{port}")
    assert str(port) in location
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"""
        {"user root;" if os.geteuid() == 0 else ""}
        daemon off;
        pid {folder}/nginx.pid;
        error_log {folder}/error.log;
        events {{}}
        http {{
            access_log off;
            {temporary}
            server {{
                listen 127.0.0.1:{own_port};
                {location}
                {more}
            }}
        }}
    """
    folder.mkdir()
    (folder / "nginx.conf").write_text(text)
    command = [NGINX, "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    process = subprocess.Popen(command)

    def listens() -> bool:
        assert process.poll() is None, (folder / "error.log").read_text()
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", own_port)) == 0

    try:
        wait_until(listens, "nginx listens")
        yield own_port
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def through(server: Served, port: int) -> Served:
    """The server as who asks nginx sees it."""
    return replace(server, port=port)


def test_page_and_stream_behind_a_path_and_another_name(tmp_path: Path) -> None:
    with (
        running(tmp_path / "run") as (paths, ledger),
        serving(paths.root, names=[NAME]) as server,
        nginx(tmp_path / "nginx", server.port) as port,
    ):
        proxy, host = through(server, port), f"{NAME}:{port}"
        bearer = f"Bearer {server.token}"
        status, headers, _ = proxy.request(PATH, host=host)
        assert (status, headers["Location"]) == (301, f"http://{host}{PATH}/")
        assert proxy.request(f"{PATH}/", host=host)[0] == 200
        assert proxy.request(f"{PATH}/assets/live.js", host=host)[0] == 200
        assert proxy.request(f"{PATH}/", host="evil.example")[0] == 421
        assert proxy.request(f"{PATH}/api/this/jobs/j0-s0", host=host)[0] == 401
        with Viewer(port, f"{PATH}/api/this/events", Host=host, Authorization=bearer) as viewer:
            viewer.next()
            for steps in (100, 200):  # each small message comes while the stream is open
                ledger.set_progress([("j0-s0", steps, 1.0, 1.0, "fast")])
                ledger.commit()
                viewer.until(lambda one, steps=steps: one.job("j0-s0")["steps"] == steps)


def test_a_browser_uses_the_page_behind_a_path_and_another_name(tmp_path: Path) -> None:
    pytest.importorskip("selenium", reason="selenium is not installed")
    from browser_helpers import CHROMIUM, DRIVER, Browser

    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    make_run_dir(tmp_path / "runs/ended", [Trained(preview=film_strip)])
    browser = Browser(f"--host-resolver-rules=MAP {NAME} 127.0.0.1")
    try:
        with (
            running(tmp_path / "runs/alive"),
            serving(tmp_path / "runs", names=[NAME]) as server,
            nginx(tmp_path / "nginx", server.port) as port,
        ):
            browser.open(f"http://{NAME}:{port}{PATH}/#token={server.token}")
            browser.shows("#runs", "alive")
            assert "token" not in browser.driver.current_url
            click(browser, "#runs a", "ended")
            browser.shows("#jobs", "j0-s0")
            loaded = "document.querySelector('#robots img')?.naturalWidth > 0"
            browser.run("document.getElementById('robots').scrollIntoView()")
            wait_until(lambda: browser.run(loaded), "a picture")
            click(browser, "#jobs tbody a", "j0-s0")
            browser.shows("#panel .facts", "seed")
            browser.run("document.getElementById('panel').close()")
            click(browser, "#up", "All experiments")
            browser.shows("#runs", "alive")
            click(browser, "#runs a", "alive")
            browser.shows("#jobs", "j1-s0")
            click(browser, "#jobs tbody a", "j1-s0")
            browser.shows("#panel .facts", "seed")
            only_with_https = "Cross-Origin-Opener-Policy"
            assert [one for one in browser.errors() if only_with_https not in one] == []
    finally:
        browser.driver.quit()


def click(browser: Browser, selector: str, text: str) -> None:
    """Click the first one that ``selector`` finds with ``text`` in it."""
    chosen = "[...document.querySelectorAll(arguments[0])].find((one) => one.innerText.includes(arguments[1]))"
    browser.run(f"{chosen}.click()", selector, text)
