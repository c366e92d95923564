"""What the process beside the supervisor does: in turns, it sends what is new to each tracker."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import LedgerBusyError, OrchestratorError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.pacer import Pace
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.experiment.directory import run_directory
from orchestrator.features.tracking import files
from orchestrator.features.tracking.publisher import Publisher
from orchestrator.features.tracking.track_process import COMPLETE, HAS_BEGUN, WARNING
from orchestrator.ledger import SummaryRow

READING = Pace(every_s=2.0, share=0.002, longest_s=300.0)
"""How often the ledger is read and what is new is sent; the share is of one core."""
RETRY_S = 30.0
"""Between attempts with a tracker that failed."""
FINAL_RETRY_S = 2.0


class Finish(threading.Event):
    """Set when there is nothing more to come."""

    def listen(self) -> None:
        """Wait for the supervisor's word, or its end."""
        if os.read(0, 1):
            self.set()
            os.read(0, 1)
        os._exit(0)


def warn(message: str, what_next: str = "it is tried again") -> None:
    """For the supervisor to pass on."""
    _say(f"{WARNING}{message}; {what_next}")


def _say(line: str) -> None:
    """For the supervisor, which reads the log."""
    print(line, flush=True)


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


def run(paths: RunPaths, finish: Finish) -> None:
    """Returns when every tracker has everything; until then it tries again.

    :raises OrchestratorError, OSError, ValueError: the run directory cannot be read.
    """
    declared: dict[str, Any] = json.loads(read_regular(files.declaration_file(paths.root)))
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
        _loop(publishers, JobRows(paths), finish)


def _loop(publishers: Sequence[Publisher], jobs: JobRows, finish: Finish) -> None:
    turns = Turns(list(publishers), jobs)
    while True:
        is_last = finish.is_set()
        began = time.process_time()
        turns.take(is_last=is_last)
        if is_last and not turns.incomplete:
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
    _due: dict[str, float] = field(default_factory=dict, init=False)
    """Tracker → before which moment it is left alone, since it has failed."""
    _has_begun: bool = field(default=False, init=False)

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
        if not self._has_begun:
            self._has_begun = True
            _say(HAS_BEGUN)

    def _send(self, publisher: Publisher, rows: Sequence[SummaryRow], *, is_last: bool) -> None:
        failures = publisher.failures
        if publisher.turn(rows, is_last=is_last) and is_last:
            self.incomplete.remove(publisher)
            _say(f"{COMPLETE}{publisher.backend}")
            _warn_of_left_out(publisher)
        if publisher.failures > failures:
            self._due[publisher.backend] = time.monotonic() + RETRY_S


def _warn_of_left_out(publisher: Publisher) -> None:
    if publisher.left_out:
        late = f"{publisher.backend}: no time for {count(publisher.left_out, 'preview')}"
        warn(late, "the next run sends the rest")


def main(run_dir: str, *, is_at_once: bool) -> int:
    """Returns the exit code."""
    finish = Finish()
    if is_at_once:
        finish.set()
    threading.Thread(target=finish.listen, daemon=True).start()
    try:
        run(RunPaths(Path(run_dir)), finish)
    except (OrchestratorError, OSError, ValueError) as error:
        _say(f"{WARNING}{error}")
        return 2
    return 0
