"""Supervisors on other hosts than the process that looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.ledger import Ledger


@contextlib.contextmanager
def on_another_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block this process has another host's name, and must not open a ledger."""

    def refuse(*_: Any, **__: Any) -> Ledger:
        raise AssertionError("a ledger was opened from another host")

    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "another-host")
        patch.setattr(Ledger, "open", refuse)
        yield
