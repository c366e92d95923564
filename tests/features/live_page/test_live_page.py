"""The live page as its server answers: what it shows, what it costs, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from command_helpers import PATIENCE_S, wait_until
from live_page_helpers import (
    KERNEL_BYTES,
    Served,
    Viewer,
    plant,
    report,
    running,
    serving,
    stuck_viewer,
)
from report_helpers import Trained, make_run_dir

from orchestrator.client import run_snapshot
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.live_page import feed, folder_source, request_timeout
from orchestrator.features.live_page.run_source import RunSource

PREVIEW = b"\x89PNG\r\n\x1a\n" + bytes(100)
TRAINED = [
    Trained(name="hopper", seed=0, preview=lambda: PREVIEW),
    Trained(name="hopper", seed=1, attempts=2),
    Trained(name="walker", state="FAILED", message="<b>the knee</b> \x1b[31mfell off"),
    Trained(name="waits", state="PENDING"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/orchestrator"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory that no test changes."""
    root = tmp_path_factory.mktemp("runs") / "ended"
    paths = make_run_dir(root, TRAINED)
    attempt = paths.job("j0-s0").attempt(0)
    attempt.root.mkdir(parents=True, exist_ok=True)
    attempt.worker_log.write_bytes(b"first line\nsecond \x1b[31m\xff line\n")
    return root


@pytest.fixture(scope="module")
def served(ended: Path) -> Iterator[Served]:
    with serving(ended) as server:
        yield server


# -- what it shows


def test_a_viewer_first_gets_everything(served: Served, ended: Path) -> None:
    with Viewer(served.port) as viewer:
        viewer.next()
        rows = {row["job_id"]: row for row in run_snapshot.status(ended).rows}
        assert {name for name in viewer.pieces if name.startswith("job:")} == {
            f"job:{job_id}" for job_id in rows
        }
        for job_id, row in rows.items():
            job = viewer.job(job_id)
            assert (job["state"], job["steps"], job["attempts"]) == (
                row["state"],
                row["env_steps"],
                row["attempts"],
            )
        assert viewer.pieces["head"]["condition"] == "ended"
        assert viewer.pieces["head"]["counts"] == {"SUCCEEDED": 2, "FAILED": 1, "PENDING": 1}
        assert [(one["job"], one["outcome"]) for one in viewer.pieces["attempts"]] == [
            ("j0-s1", "failed")
        ]
        assert viewer.job("j0-s0")["media"] == 1
        assert viewer.job("j1-s0")["message"] == "<b>the knee</b> \\u001b[31mfell off"
        assert len(viewer.lists["curve:j0-s0"]) == 5
        assert "curve:j2-s0" not in viewer.lists


def test_all_viewers_get_what_has_changed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = []
    read = RunSource.read
    monkeypatch.setattr(RunSource, "read", lambda self: readings.append(1) or read(self))
    with (
        running(tmp_path / "run") as (paths, ledger),
        serving(paths.root) as server,
        contextlib.ExitStack() as stack,
    ):
        viewers = [stack.enter_context(Viewer(server.port)) for _ in range(5)]
        for viewer in viewers:
            viewer.next()
            assert viewer.pieces["head"]["condition"] == "running"
            assert viewer.job("j0-s0")["state"] == "RUNNING"
        before = len(readings)
        ledger.set_progress([("j0-s0", 300, 7.5, 100.0, "fast")])
        ledger.commit()
        for viewer in viewers:
            message = viewer.until(lambda one: one.job("j0-s0")["steps"] == 300)
            assert "job:j1-s0" not in message["put"]
            assert viewer.job("j0-s0")["ret"] == 7.5
        assert len(readings) - before < 10, "one reading serves all"


@pytest.mark.nightly
def test_learning_curves_grow_and_contention_is_told_when_it_arises(tmp_path: Path) -> None:
    with (
        running(tmp_path / "run") as (paths, ledger),
        serving(paths.root) as server,
        Viewer(server.port) as viewer,
    ):
        viewer.next()
        report(ledger, delay=0.0)
        progress = paths.job("j0-s0").progress_csv
        progress.parent.mkdir(parents=True)
        progress.write_text("time/total_timesteps,rollout/ep_rew_mean\n100,1.5\n")
        ledger.set_progress([("j0-s0", 100, 1.5, 100.0, "fast")])
        ledger.commit()
        viewer.until(lambda one: one.lists.get("curve:j0-s0") == [[100, 1.5]])
        assert viewer.pieces["findings"] == []
        report(ledger, delay=0.6)
        ledger.commit()
        viewer.until(lambda one: one.pieces["findings"])
        [finding] = viewer.pieces["findings"]
        assert (finding["kind"], finding["when"], finding["job_ids"]) == ("hog", "now", ["j0-s0"])
        with progress.open("a") as file:
            file.write("200,2.5\n")
        ledger.set_progress([("j0-s0", 200, 2.5, 100.0, "fast")])
        ledger.commit()
        message = viewer.until(lambda one: len(one.lists["curve:j0-s0"]) == 2)
        assert message["grow"] == {"curve:j0-s0": [[200, 2.5]]}, (
            "what a viewer has is not sent again"
        )


@pytest.mark.nightly
def test_a_page_waits_for_its_run_and_survives_supervisor_and_directory(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with serving(root) as server, Viewer(server.port) as viewer:
        viewer.next()
        assert viewer.pieces["head"]["condition"] == "missing"
        with running(root):
            viewer.until(lambda one: one.pieces["head"]["condition"] == "running")
        viewer.until(lambda one: one.pieces["head"]["condition"] == "killed")
        assert viewer.job("j0-s0")["state"] == "PENDING"
        with run_directory.claim(root):
            viewer.until(lambda one: one.pieces["head"]["condition"] == "running")
        shutil.rmtree(root)
        viewer.until(lambda one: one.pieces["head"]["condition"] == "missing")
        assert "job:j0-s0" not in viewer.pieces
        root.mkdir()
        RunPaths(root).ledger.write_bytes(b"no database")
        viewer.until(lambda one: one.pieces["head"]["condition"] == "unreadable")
        assert "ledger" in viewer.pieces["head"]["problem"]


@pytest.mark.nightly
def test_a_viewer_that_stops_reading_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "READING", replace(feed.READING, longest_s=0.5))
    failed = Trained(iterations=1, attempts=2, message="the knee fell off; " * 100)
    paths = make_run_dir(tmp_path / "run", [replace(failed, seed=seed) for seed in range(100)])
    with (
        serving(paths.root) as server,
        stuck_viewer(server) as unsent,
        Viewer(server.port) as viewer,
    ):
        viewer.next()
        assert viewer.sizes[0] > 20 * KERNEL_BYTES
        before = unsent()
        for steps in (100, 200, 300):
            with run_directory.opened_ledger(paths) as ledger:
                ledger.set_progress(
                    [(f"j0-s{seed}", steps, 1.0, 1.0, "fast") for seed in range(100)]
                )
                ledger.commit()
            viewer.until(lambda one, steps=steps: one.job("j0-s99")["steps"] == steps)
        assert 0 < unsent() <= before, "nothing more is kept for it"


def test_a_page_has_the_sections_of_features_as_they_are_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with running(tmp_path / "run") as (paths, ledger):
        source = RunSource(paths.root)
        (section,) = json.loads(source.read().put["sections"])
        assert section["title"] == "The garden"
        assert section["text"] == r"looked at 1 times\u001b[31m"
        assert section["tables"][0]["rows"][0] == ["apple", None, 3, ["j0-s0"], 1500]
        ledger.set_progress([("j0-s0", 300, 7.5, 100.0, "fast")])
        ledger.commit()
        (section,) = json.loads(source.read().put["sections"])
        assert section["text"].startswith("looked at 2 times")


@pytest.mark.nightly
def test_a_folder_has_all_experiments_below_it_also_those_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_source, "SEARCH", replace(folder_source.SEARCH, every_s=1.0))
    folder = tmp_path / "runs"
    make_run_dir(folder / "one", [Trained()])
    make_run_dir(folder / "deeper/two", [Trained(state="PENDING")])
    with serving(folder) as server, Viewer(server.port, "/api/runs/events") as viewer:
        viewer.next()
        runs = {
            piece["name"]: piece for name, piece in viewer.pieces.items() if name.startswith("run:")
        }
        assert {name: run["state"] for name, run in runs.items()} == {
            "one": "finished",
            "two": "interrupted",
        }
        key = runs["two"]["key"]
        status, _, page = server.request(f"/run/{key}")
        assert (status, f'data-key="{key}"'.encode() in page) == (200, True)
        with Viewer(server.port, f"/api/{key}/events") as other:
            other.next()
            assert other.pieces["head"]["root"].endswith("deeper/two")
        make_run_dir(folder / "later", [Trained()])
        viewer.until(lambda one: len([name for name in one.pieces if name.startswith("run:")]) == 3)


def test_without_a_folder_it_has_the_experiments_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.experiment import run_index

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run_index.note(make_run_dir(tmp_path / "anywhere", [Trained()]).root, "noted")
    with serving(None) as server, Viewer(server.port, "/api/runs/events") as viewer:
        viewer.next()
        assert [
            piece["name"] for name, piece in viewer.pieces.items() if name.startswith("run:")
        ] == ["noted"]


def test_a_job_has_its_facts_its_log_and_its_pictures(served: Served, ended: Path) -> None:
    facts = served.json("/api/this/jobs/j0-s0")
    assert len(facts["curve"]) == 5
    assert len(facts["times"]) == 5
    assert facts["facts"]["seed"] == 0
    failed = served.json("/api/this/jobs/j1-s0")
    assert "fell off" in failed["message"]
    with Viewer(served.port, "/api/this/jobs/j0-s0/log") as log:
        assert log.event() == "first line\nsecond \\u001b[31m\ufffd line\n"
        with RunPaths(ended).job("j0-s0").attempt(0).worker_log.open("a") as file:
            file.write("third line\n")
        assert log.event() == "third line\n"
    status, headers, body = served.request("/api/this/jobs/j0-s0/preview.png")
    assert (status, headers["content-type"], body) == (200, "image/png", PREVIEW)
    status, _, body = served.request("/api/this/jobs/j0-s0/preview.png", range="bytes=0-3")
    assert (status, body) == (206, PREVIEW[:4])
    for path in (
        "jobs/j0-s0/video.mp4",
        "jobs/j0-s0/thumbnail.jpg",
        "jobs/j9-s0",
        "jobs/j2-s0/log",
    ):
        assert served.request(f"/api/this/{path}")[0] == 404


# -- what it refuses


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8711", "", None, "["]
)
def test_a_foreign_host_is_refused(served: Served, host: str | None) -> None:
    for path in ("/", "/api/this/events", "/api/this/jobs/j0-s0"):
        assert served.request(path, host=host)[0] in (400, 421)


def test_a_page_of_another_site_gets_no_data(served: Served) -> None:
    for path in ("/api/this/events", "/api/unknown/events", "/api/this/jobs/j0-s0/preview.png"):
        assert served.request(path, sec_fetch_site="cross-site")[0] == 403
    assert served.request("/", sec_fetch_site="cross-site")[0] == 200, (
        "a link of another site may lead to the page"
    )
    assert served.request("/api/this/jobs/j0-s0", sec_fetch_site="same-origin")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../pages.py",
        "/assets/..%2fpages.py",
        "/assets/%2e%2e/%2e%2e/cli.py",
        "/api/this/jobs/../experiment.toml",
        "/api/this/jobs/..%2f..%2fledger.sqlite3/preview.png",
        "/api/this/jobs/j0-s0/..%2fspec.json",
        "/api/this/jobs/j0-s0/spec.json",
        "/api/this/jobs/j0-s0/worker.log",
        "/api/..%2f..%2f/jobs/j0-s0",
        "/api/other/jobs/j0-s0",
        "/api/this/jobs/j0-s0/log?attempt=../../../etc",
        "/api/this/jobs/j0-s0/log?attempt=2",
        "/api/this/jobs/j0-s0/log?rank=-1",
        "/api/this/jobs/j0*",
        "//etc/passwd",
    ],
)
def test_what_is_no_part_of_the_page_is_not_there(served: Served, path: str) -> None:
    assert served.request(path)[0] in (400, 404)


def test_a_link_out_of_the_run_directory_is_not_followed(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained()])
    (tmp_path / "secret").write_text("secret")
    paths.job("j0-s0").preview.symlink_to(tmp_path / "secret")
    with serving(paths.root) as server:
        assert server.request("/api/this/jobs/j0-s0/preview.png")[0] == 404
        assert server.request("/api/this/jobs/j0-s0/thumbnail.jpg")[0] == 404


def test_logs_and_directories_behind_links_out_of_the_run_directory_are_not_given_out(
    tmp_path: Path,
) -> None:
    jobs = [Trained(name=name, preview=lambda: PREVIEW) for name in ("log", "directory", "inside")]
    paths = make_run_dir(tmp_path / "run", jobs)
    for job_id in ("j0-s0", "j1-s0", "j2-s0"):
        paths.job(job_id).attempt(0).root.mkdir(parents=True, exist_ok=True)
        paths.job(job_id).attempt(0).worker_log.write_text("private words\n")
    log, job, inside = (
        paths.job("j0-s0").attempt(0).worker_log,
        paths.job("j1-s0").root,
        paths.job("j2-s0").root,
    )
    log.symlink_to(log.rename(tmp_path / "elsewhere.log"))
    job.symlink_to(job.rename(tmp_path / "elsewhere"))
    inside.symlink_to(inside.rename(paths.root / "moved"))
    with serving(paths.root) as server:
        for job_id in ("j0-s0", "j1-s0"):
            with Viewer(server.port, f"/api/this/jobs/{job_id}/log") as viewer:
                text = viewer.event()
                assert "cannot be read" in text
                assert "private" not in text
        for name in ("preview.png", "thumbnail.jpg"):
            assert server.request(f"/api/this/jobs/j1-s0/{name}")[0] == 404
        with Viewer(server.port, "/api/this/jobs/j2-s0/log") as viewer:
            assert viewer.event() == "private words\n", (
                "a link within the run directory leads to what belongs to it"
            )
        assert server.request("/api/this/jobs/j2-s0/preview.png")[2] == PREVIEW


HALF = {
    "nothing": b"",
    "half a request line": b"GET / HT",
    "half a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
    "half a body": b"POST /api/this/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    "half of a second request": b"GET /assets/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT",
    "a stream, but for its body": b"GET /api/this/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
}


@pytest.mark.nightly
@pytest.mark.parametrize("sent", HALF.values(), ids=HALF)
def test_a_connection_that_does_not_come_to_the_end_of_its_request_is_closed(
    sent: bytes, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_timeout, "REQUEST_S", 0.5)
    with socket.create_connection((served.host, served.port), timeout=PATIENCE_S) as client:
        client.sendall(sent)
        read_to_the_end(client)


def read_to_the_end(client: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1 << 16):
            continue


def test_a_client_that_does_not_take_its_response_is_given_up(
    ended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_timeout, "REQUEST_S", 0.5)
    with serving(ended) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        client.connect((server.host, server.port))
        client.sendall(3 * b"GET /assets/overview.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connections = server.server.server_state.connections
        wait_until(lambda: len(connections) == 1, "a connection")
        wait_until(lambda: not connections, "its end")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_is_read_only(served: Served, method: str) -> None:
    for path in ("/", "/api/this/events", "/api/this/control"):
        assert served.request(path, method=method, body=b"{}")[0] == 405


def test_only_this_machine_reaches_it(served: Served) -> None:
    mine = [
        one
        for one in psutil.Process().net_connections("tcp")
        if one.laddr and one.laddr.port == served.port
    ]
    assert {one.laddr.ip for one in mine} == {"127.0.0.1"}
    others = [
        one.address
        for interface in psutil.net_if_addrs().values()
        for one in interface
        if one.family == socket.AF_INET and not one.address.startswith("127.")
    ]
    for address in others:
        with pytest.raises(OSError, match=r"refused|timed out"):
            socket.create_connection((address, served.port), timeout=2)


def test_beyond_this_machine_nothing_is_shown_without_the_token(ended: Path, home: Path) -> None:
    with serving(ended, host="0.0.0.0") as server:
        assert stat.S_IMODE((home / "serve-token").stat().st_mode) == 0o600
        assert server.request("/")[0] == 200, "the page itself holds no data"
        for path in (
            "/api/this/events",
            "/api/this/jobs/j0-s0",
            "/api/this/jobs/j0-s0/preview.png",
        ):
            assert server.request(path)[0] == 401
            assert server.request(path, host="evil.example")[0] == 421
        bearer = f"Bearer {server.token}"
        assert server.request("/api/this/jobs/j0-s0", authorization=bearer)[0] == 200
        with Viewer(server.port, authorization=bearer) as viewer:
            viewer.next()
            assert viewer.pieces["head"]["name"] == "ended"


NAMES = ("robots.example.org", "Lab.Example.", "2001:db8::1")


def test_by_a_name_that_it_was_given_data_needs_the_token(ended: Path) -> None:
    with serving(ended, names=NAMES) as server:
        for host in (
            "robots.example.org",
            "ROBOTS.example.org:8443",
            "lab.example",
            "[2001:db8::1]:80",
        ):
            assert server.request("/", host=host)[0] == 200
            assert server.request("/api/this/jobs/j0-s0", host=host)[0] == 401
            for header in (
                {"authorization": f"Bearer {server.token}"},
                {"x_orchestrator_token": server.token},
            ):
                assert server.request("/api/this/jobs/j0-s0", host=host, **header)[0] == 200
        assert server.request("/api/this/jobs/j0-s0")[0] == 401, "whatever the name"
        for host in (
            "example.org",
            "other.example.org",
            "robots.example.org.evil.example",
            "2001:db8::1",
        ):
            assert server.request("/", host=host)[0] == 421


# -- the command


def test_it_keeps_nothing_open_and_writes_nothing(tmp_path: Path) -> None:
    paths = make_run_dir(tmp_path / "run", TRAINED)
    before = {path: path.stat().st_mtime_ns for path in paths.root.rglob("*")}
    with serving(paths.root) as server, Viewer(server.port) as viewer:
        viewer.next()
        own = str(paths.root)
        wait_until(
            lambda: (
                not [one.path for one in psutil.Process().open_files() if one.path.startswith(own)]
            ),
            "closed",
        )
    assert {path: path.stat().st_mtime_ns for path in paths.root.rglob("*")} == before
