"""The process of a supervisor whose workers are those of ``little_worker.py``, and which examines
nothing. With ``KILL_AT`` it kills itself at that access to the ledger, with ``COMMIT_S`` each commit
takes so long.

Started as ``python little_server.py RUN_DIR``.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.executors import local
from orchestrator.ledger import Ledger
from orchestrator.server import __main__ as server

WORKER = (sys.executable, str(Path(__file__).with_name("little_worker.py")))


class NoChild:
    """In the place of the process that examines robots."""

    def __enter__(self) -> NoChild:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


def kill_at(number: int) -> None:
    """Kill this process at one of the statements and commits that follow."""
    count = 0

    def counted(function: Any) -> Any:
        def call(*args: Any, **values: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **values)

        return call

    for name in ("_execute", "commit"):
        setattr(Ledger, name, counted(getattr(Ledger, name)))


def slow_down(commit_s: float) -> None:
    """Let each commit take so long, as on a slow disk."""
    commit = Ledger.commit

    def commit_slowly(self: Ledger) -> None:
        time.sleep(commit_s)
        commit(self)

    Ledger.commit = commit_slowly  # type: ignore[method-assign]


if __name__ == "__main__":
    processes = functools.partial(local.Processes, worker_command=WORKER)
    local.Processes = processes  # type: ignore[misc,assignment]
    server.Child = NoChild  # type: ignore[misc,assignment]
    if number := int(os.environ.get("KILL_AT", "0")):
        kill_at(number)
    if commit_s := float(os.environ.get("COMMIT_S", "0")):
        slow_down(commit_s)
    sys.exit(server.main())
