"""The live page where what it reads is replaced, ends, is locked, or cannot be read for an
unforeseen reason."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from live_page_helpers import Viewer, running, serving
from report_helpers import Trained, make_run_dir

from orchestrator.core.errors import LedgerBusyError, LedgerFailingError, LedgerUnavailableError
from orchestrator.core.job import Attempt, Succeeded
from orchestrator.experiment.directory import run_directory
from orchestrator.features.live_page import feed, run_source
from orchestrator.features.live_page.run_source import RunSource


def test_a_run_directory_that_is_replaced_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `run --fresh` replaces it."""
    monkeypatch.setattr(feed, "READING", replace(feed.READING, longest_s=0.5))
    root = make_run_dir(tmp_path / "run", [Trained(seed=seed) for seed in range(30)]).root
    new = make_run_dir(tmp_path / "new", [Trained(seed=seed) for seed in range(6)]).root
    with serving(root) as server, Viewer(server.port) as viewer:
        viewer.next()
        assert "job:j0-s29" in viewer.pieces
        root.rename(tmp_path / "former")
        new.rename(root)
        viewer.until(lambda one: "job:j0-s29" not in one.pieces)
        assert "job:j0-s5" in viewer.pieces
        assert "job:j0-s6" not in viewer.pieces
        root.rename(tmp_path / "second")
        make_run_dir(root, [Trained(attempts=2, message="the elbow fell off")])
        viewer.until(lambda one: "job:j0-s0" in one.pieces)
        root.rename(tmp_path / "third")
        make_run_dir(root, [Trained(attempts=2, message="the knee fell off", iterations=2)])
        viewer.until(
            lambda one: any("knee" in attempt["message"] for attempt in one.pieces["attempts"])
        )
        assert len(viewer.lists["curve:j0-s0"]) == 2


def test_after_an_unexpected_error_the_page_is_told_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(_: RunSource) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(RunSource, "read", breaks)
    with serving(make_run_dir(tmp_path / "run", [Trained()]).root) as server:
        assert server.request("/api/this/events")[0] == 200, "its stream ends"
        status, _, body = server.request("/api/this/events")
        assert (status, b"reading has failed" in body) == (503, True)


@pytest.mark.parametrize("kind", [LedgerBusyError, LedgerFailingError])
def test_a_ledger_that_cannot_be_read_just_now_is_said_so(
    kind: type[LedgerUnavailableError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_run_dir(tmp_path / "run", [Trained()])

    def is_unavailable(*_: Any, **__: Any) -> None:
        raise kind(f"{paths.ledger}: not just now")

    with serving(paths.root) as server:
        assert server.request("/api/this/jobs/j0-s0")[0] == 200
        monkeypatch.setattr(run_directory, "opened_ledger", is_unavailable)
        for path in ("jobs/j0-s0", "jobs/j0-s0/log", "jobs/j0-s0/preview.png"):
            status, _, body = server.request(f"/api/this/{path}")
            assert (status, b"not just now" in body) == (503, True)


def test_files_are_read_for_contention_also_after_the_last_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(
        run_source,
        "time",
        SimpleNamespace(monotonic=lambda: clock.now, thread_time=time.thread_time),
    )
    monkeypatch.setattr(run_source, "MOST_EXAMINED", 1)
    made = make_run_dir(tmp_path / "made", [Trained(), Trained(name="other")])
    with running(tmp_path / "run") as (paths, ledger):
        source = RunSource(paths.root)
        assert json.loads(source.read().put["delays"]) == {}
        for job_id in ("j0-s0", "j1-s0"):
            shutil.copytree(made.job(job_id).root, paths.job(job_id).root)
        ledger.set_progress([("j0-s0", 100, 1.0, 1.0, "fast")])
        ledger.commit()
        assert "delays" not in source.read().put, "that was examined just now"
        clock.now += run_source.EXAMINATION.every_s
        assert json.loads(source.read().put["delays"]).keys() == {"j0-s0"}, (
            "nothing has changed since"
        )
        ledger.set_state("j0-s0", Succeeded())
        ledger.start_attempt(
            Attempt(job_id="j1-s0", number=0, cpus=(0,), gpus=(), started_at=2e9), queue_s=0.0
        )
        ledger.commit()
        source.read()
    assert json.loads(source.read().put["delays"]).keys() == {"j0-s0", "j1-s0"}, (
        "what has ended is examined at once"
    )
