"""What the process beside the supervisor does: in turns, it sends what is new to each tracker."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.client.requests import report
from orchestrator.core.errors import LedgerBusyError, OrchestratorError
from orchestrator.core.pacer import Pace
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, joined
from orchestrator.experiment import run_directory
from orchestrator.features.tracking.process_arguments import TIME_LIMIT_S
from orchestrator.features.tracking.publisher import Publisher
from orchestrator.ledger import SummaryRow
from orchestrator.server.companions import ALL_ENDED, DONE

READING = Pace(every_s=2.0, share=0.002, longest_s=300.0)
"""How often the ledger is read and what is new is sent; the share is of one core."""
RETRY_S = 30.0
"""Between attempts with a tracker that failed."""
FINAL_RETRY_S = 2.0


class Finish(threading.Event):
    """Set when all jobs and their pictures are done."""

    def listen(self) -> None:
        """Wait for the supervisor's word, or its end."""
        while told := os.read(0, 1024):
            if ALL_ENDED in told:
                self.set()
        os._exit(0)


@dataclass(slots=True)
class Warnings:
    """Lets the supervisor report warnings, each text once."""

    paths: RunPaths
    _told: set[str] = field(default_factory=set, init=False)

    def tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            print(text, flush=True)
            report(self.paths.root, "warning", f"trackers: {text}")


@dataclass(slots=True)
class JobRows:
    """Reads the ledger, and leaves it closed: while it is open, the supervisor cannot remove the
    write-ahead file.
    """

    paths: RunPaths
    _sound_inode: int = field(default=0, init=False)

    def read(self) -> list[SummaryRow]:
        """:raises LedgerError, OSError: it cannot be read."""
        inode = self.paths.ledger.stat().st_ino
        is_sound = inode == self._sound_inode
        with run_directory.opened_ledger(self.paths, read_only=True, is_sound=is_sound) as ledger:
            rows = ledger.summary()
        self._sound_inode = inode
        return rows


def run(paths: RunPaths, declared: Mapping[str, Any], finish: Finish) -> None:
    """Send what is new until all jobs are done and every tracker has everything, or the time for that
    is over.

    :raises OrchestratorError, OSError: the run directory cannot be read.
    """
    warnings = Warnings(paths)

    def warn(message: str, what_next: str = "it is tried again") -> None:
        warnings.tell(f"{message}; {what_next}")

    # Files first: a server may keep others waiting.
    ordered = sorted(declared["trackers"], key=lambda backend: backend != "tensorboard")
    publishers = [
        Publisher(
            paths=paths,
            experiment=declared["name"],
            backend=backend,
            options=declared["trackers"][backend],
            report=warn,
        )
        for backend in ordered
    ]
    with contextlib.ExitStack() as stack:
        for publisher in publishers:
            stack.callback(publisher.close)
        _loop(publishers, JobRows(paths), finish, warnings)


def _loop(
    publishers: Sequence[Publisher], jobs: JobRows, finish: Finish, warnings: Warnings
) -> None:
    turns = Turns(list(publishers), jobs, warnings)
    give_up_at = math.inf
    while True:
        is_last = finish.is_set()
        if is_last and give_up_at == math.inf:
            give_up_at = time.monotonic() + TIME_LIMIT_S
        began = time.process_time()
        turns.take(is_last=is_last)
        if is_last and not turns.incomplete:
            return
        if is_last and time.monotonic() + FINAL_RETRY_S > give_up_at:
            names = joined(publisher.backend for publisher in turns.incomplete)
            text = (
                f"{names} may not have everything of this run; the next run sends what is missing"
            )
            warnings.tell(text)
            return
        if is_last:
            time.sleep(FINAL_RETRY_S)
        else:
            finish.wait(READING.pause_s(time.process_time() - began))


@dataclass(slots=True)
class Turns:
    """Who is sent something when."""

    incomplete: list[Publisher]
    """Those whose tracker does not have everything yet."""
    jobs: JobRows
    warnings: Warnings
    _due: dict[str, float] = field(default_factory=dict, init=False)
    """Tracker → before which moment it is left alone, since it has failed."""

    def take(self, *, is_last: bool) -> None:
        """Send what is new to each tracker that is due; at last to all.

        :raises LedgerError, OSError: the ledger cannot be read.
        """
        now = time.monotonic()
        due = [one for one in self.incomplete if is_last or now >= self._due.get(one.backend, 0.0)]
        if not due:
            return
        try:
            rows = self.jobs.read()
        except LedgerBusyError:  # it is read in the next turn
            return
        # A server that does not answer keeps no other tracker waiting.
        for publisher in sorted(due, key=lambda one: one.failures):
            self._send(publisher, rows, is_last=is_last)

    def _send(self, publisher: Publisher, rows: Sequence[SummaryRow], *, is_last: bool) -> None:
        failures = publisher.failures
        if publisher.turn(rows, is_last=is_last) and is_last:
            self.incomplete.remove(publisher)
            if publisher.left_out:
                late = f"{publisher.backend}: no time for {count(publisher.left_out, 'preview')}"
                self.warnings.tell(f"{late}; the next run sends the rest")
        if publisher.failures > failures:
            self._due[publisher.backend] = time.monotonic() + RETRY_S


def main(run_dir: str, settings: str) -> int:
    """Return the exit code."""
    finish = Finish()
    threading.Thread(target=finish.listen, daemon=True).start()
    try:
        run(RunPaths(Path(run_dir)), json.loads(settings), finish)
    except (OrchestratorError, OSError) as error:
        print(error, flush=True)
        return 1
    return DONE
