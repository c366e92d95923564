"""A simulated worker that does path file operation a step, and assertions about its job
directory."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.core.paths import REPLAY, JobPaths
from orchestrator.features.ray.file_sync.chunks import Appended, Chunk, FilePart, Payload
from orchestrator.features.ray.file_sync.receiver import Receiver
from orchestrator.features.ray.file_sync.sender import Sender

BUFFER_ROWS = 6
EVERY = 3
"""Iterations between checkpoints."""
KEPT = 2
ROWS = re.compile(r"rows-(\d+)-(\d+)\.npz")
HEADER = "iteration,said\n"


def synchronise(sender: Sender, receiver: Receiver) -> list[Chunk]:
    """Scan once and apply the chunks; returns them."""
    sent_chunks = []
    for chunk in sender.scan():
        receiver.apply(chunk)
        sent_chunks.append(chunk)
    return sent_chunks


class FakeWorker:
    """Does the file operations of a real worker, in the same order; :meth:`step` does path.

    :param ages: modification times for successive writes, far in the past; None: the real time.
    """

    def __init__(
        self, root: Path, number: int, *, seed: int, ages: Iterator[int] | None, buffered: bool
    ) -> None:
        self.paths = JobPaths(root)
        self._attempt = self.paths.attempt(number)
        self._attempt.root.mkdir(parents=True, exist_ok=True)
        self._replay = self.paths.checkpoints / "replay" if buffered else None
        self._random = random.Random(seed)
        self._ages = ages
        self._steps = self._work()
        self._tables = (self.paths.progress_csv, self.paths.timings_csv)
        self.is_done = False

    def step(self) -> None:
        self.is_done = self.is_done or next(self._steps, None) is None

    def _work(self) -> Iterator[str]:
        yield from self._append(self._attempt.worker_log, "begins\n")
        for folder in filter(None, (self.paths.checkpoints, self._replay)):
            folder.mkdir(parents=True, exist_ok=True)
            for stray in folder.glob(".*.tmp"):
                stray.unlink()
                yield "stray removed"
        kept, saved = yield from self._resume()
        for table in self._tables:
            lines = table.read_text().splitlines(keepends=True) if kept else []
            yield from self._write_whole(table, HEADER + "".join(lines[1 : kept + 1]))
        total = 6 * EVERY
        for iteration in range(kept + 1, total + 1):
            for table in self._tables:
                # The rows of different attempts differ, as their measured times would.
                yield from self._append(
                    table, f"{iteration},{self._random.random():.{self._random.randrange(1, 9)}f}\n"
                )
            if iteration % EVERY == 0:
                yield from self._save(iteration, saved, is_last=iteration == total)
                saved = iteration
        yield from self._write_whole(self.paths.model, self._content(400))
        if self._replay is not None:
            yield from self._unlink(self._checkpoints()[:-1])
            yield from self._unlink(sorted(self._replay.iterdir()))
            self._replay.rmdir()
        yield from self._write_whole(self.paths.eval, self._content(30))
        yield from self._append(self._attempt.worker_log, "ends\n")
        yield from self._write_whole(self._attempt.exit, '{"code": 0}')

    def _resume(self) -> Iterator[Any]:
        """Find the newest intact checkpoint. Returns its number of rows, twice; 0 without a
        checkpoint."""
        for path in reversed(self._checkpoints()):
            state = whole_checkpoint(path)
            if state is not None and self._replay is not None and "buffered" in state:
                yield from self._unlink(
                    [path for path in self._files() if _rows(path)[1] > state["rows"]]
                )
                if not covered(self._replay, state["rows"]):
                    state = None
            if state is not None:
                return state["rows"], state["rows"]
            yield from self._unlink([path])
        yield from self._unlink(self._files())
        return 0, 0

    def _save(self, rows: int, saved: int, *, is_last: bool) -> Iterator[str]:
        state: dict[str, Any] = {"rows": rows, "content": self._content(300)}
        if self._replay is not None and not is_last:
            first = max(saved, rows - BUFFER_ROWS)
            yield from self._write_whole(
                self._replay / f"rows-{first:012d}-{rows:012d}.npz", self._content(200)
            )
            state["buffered"] = True
        yield from self._write_whole(
            self.paths.checkpoints / f"checkpoint-{rows:012d}.pt", json.dumps(state)
        )
        yield from self._unlink(self._checkpoints()[:-KEPT])
        oldest = int(self._checkpoints()[0].stem.rpartition("-")[2])
        yield from self._unlink(
            [path for path in self._files() if _rows(path)[1] <= oldest - BUFFER_ROWS]
        )

    def _checkpoints(self) -> list[Path]:
        return sorted(self.paths.checkpoints.glob("*.pt"))

    def _files(self) -> list[Path]:
        return [] if self._replay is None else sorted(self._replay.glob("*.npz"))

    def _content(self, most: int) -> str:
        return self._random.randbytes(self._random.randrange(most)).hex()

    def _append(self, path: Path, text: str) -> Iterator[str]:
        with path.open("a") as file:
            file.write(text)
        self._age(path)
        yield "appended"

    def _write_whole(self, path: Path, text: str) -> Iterator[str]:
        temporary = path.with_name(f".{path.name}.7.tmp")
        temporary.write_text(text)
        self._age(temporary)
        yield "written"
        temporary.replace(path)
        yield "renamed"

    def _unlink(self, paths: list[Path]) -> Iterator[str]:
        for path in paths:
            path.unlink()
            yield "unlinked"

    def _age(self, path: Path) -> None:
        if self._ages is not None:
            seconds = next(self._ages)
            os.utime(path, (seconds, seconds))


def whole_checkpoint(path: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        return None
    return state


def damage(root: Path) -> None:
    """Make the newest checkpoint unreadable."""
    for path in sorted((root / "checkpoints").glob("*.pt"))[-1:]:
        path.write_text("damaged")


def covered(replay: Path, rows: int) -> bool:
    """Whether the files hold the last rows of a replay buffer after ``rows`` rows."""
    reached = max(0, rows - BUFFER_ROWS)
    for first, end in sorted(map(_rows, replay.glob("*.npz"))):
        if first <= reached < end <= rows:
            reached = end
    return reached == rows


def _rows(path: Path) -> tuple[int, int]:
    match = ROWS.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])


def assert_resumable(root: Path) -> None:
    """The newest intact checkpoint has its replay buffer, and its rows of both tables."""
    paths = JobPaths(root)
    states_or_none = [whole_checkpoint(path) for path in sorted(paths.checkpoints.glob("*.pt"))]
    states = [state for state in states_or_none if state is not None]
    if states:
        rows = states[-1]["rows"]
        for table in (paths.progress_csv, paths.timings_csv):
            lines = table.read_text().splitlines()
            numbers = [line.partition(",")[0] for line in lines[1 : rows + 1]]
            assert numbers == [str(number) for number in range(1, rows + 1)], table
        assert "buffered" not in states[-1] or covered(paths.checkpoints / "replay", rows)
    if any(paths.attempts.glob("*/exit.json")):
        assert paths.model.exists()
        assert paths.eval.exists()


# -- files and chunks


MIB = 2**20
LONG_AGO_S = 1_000_000_000


def write(root: Path, files: dict[str, str | bytes], *, age: int | None = LONG_AGO_S) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        if age is not None:
            os.utime(path, (age, age))


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def replace(path: Path, text: str) -> None:
    temporary = path.with_name(".temporary.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def part(path: str, content: bytes = b"x", *, offset: int = 0, is_last: bool = True) -> FilePart:
    return FilePart(path, offset, Payload.of(content, compress=True), is_last)


def tail(path: str, offset: int, content: bytes) -> Appended:
    return Appended(path, offset, Payload.of(content, compress=True))


def paths_of(some: list[Chunk]) -> list[str]:
    return [chunk.path for chunk in some]


JOB: dict[str, str | bytes] = {
    "spec.json": "{}",
    "robot.sha256": "abc",
    "robot/hopper.xml": "<mujoco/>",
    "robot/.assets/leg.stl": "solid",
    "init.pt": "where it starts",
    "progress.csv": "a\n1\n",
    "timings.csv": "b\n2\n",
    "checkpoints/checkpoint-000000000512.pt": "older",
    "checkpoints/checkpoint-000000001024.pt": "newer",
    "checkpoints/.checkpoint-000000002048.pt.77.tmp": "to",
    f"checkpoints/{REPLAY}/rows-000000000000-000000001024.npz": "rows of rank 0",
    f"checkpoints/{REPLAY}-of-rank-1/rows-000000000000-000000001024.npz": "rows of rank 1",
    "attempts/0/worker.log": "worker: hello\n",
    "attempts/0/exit.json": "{}",
    "attempts/0/rank-1.log": "worker: hello too\n",
    "attempts/0/rank-1.exit.json": "{}",
    "attempts/0/rendezvous": "where ranks meet",
    "model.zip": "trained",
    "eval.json": "{}",
    ".arriving.tmp": "half a fi",
}
ROWS_0, ROWS_1 = (
    f"checkpoints/{name}/rows-000000000000-000000001024.npz"
    for name in (REPLAY, f"{REPLAY}-of-rank-1")
)
