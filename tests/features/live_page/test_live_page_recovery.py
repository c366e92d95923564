"""The live page where what it reads is replaced, ends, is locked, or cannot be read for an
unforeseen reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from live_page_helpers import Viewer, serving
from report_helpers import Trained, make_run_dir

from orchestrator.core.errors import LedgerBusyError, LedgerFailingError, LedgerUnavailableError
from orchestrator.experiment import run_directory
from orchestrator.features.live_page import feed


@pytest.mark.nightly
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
