"""A worker made of file operations, one a step, and what is to hold of the directories that it works in."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.core.paths import REPLAY, JobPaths
from orchestrator.executors.ray.file_sync import Appended, Chunk, FilePart, Receiver, Sender
from orchestrator.executors.ray.file_sync.chunks import Payload

BUFFER_ROWS = 6
EVERY = 3
"""Iterations between checkpoints."""
KEPT = 2
ROWS = re.compile(r"rows-(\d+)-(\d+)\.npz")
HEADER = "iteration,said\n"


def tree(root: Path) -> dict[str, bytes]:
    """Content of every file that is not hidden, by its path."""
    found = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def bring(source: Sender, home: Receiver) -> list[Chunk]:
    """One scan, applied."""
    pieces = []
    for piece in source.scan():
        home.apply(piece)
        pieces.append(piece)
    return pieces


class FakeWorker:
    """Does with a job directory what a real worker does, in the same order; :meth:`step` is one file operation.

    :param ages: when given, every write has a time of its own, long past, as if a while lay between them.
    """

    def __init__(self, root: Path, number: int, *, seed: int, ages: Iterator[int] | None, buffered: bool) -> None:
        self.paths = JobPaths(root)
        self._attempt = self.paths.attempt(number)
        self._attempt.root.mkdir(parents=True, exist_ok=True)
        self._replay = self.paths.checkpoints / "replay" if buffered else None
        self._dice = random.Random(seed)
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
                # What is said differs from attempt to attempt, as times do.
                yield from self._append(table, f"{iteration},{self._dice.random():.{self._dice.randrange(1, 9)}f}\n")
            if iteration % EVERY == 0:
                yield from self._save(iteration, saved, is_last=iteration == total)
                saved = iteration
        yield from self._write_whole(self.paths.model, self._filling(400))
        if self._replay is not None:
            yield from self._unlink(self._checkpoints()[:-1])
            yield from self._unlink(sorted(self._replay.iterdir()))
            self._replay.rmdir()
        yield from self._write_whole(self.paths.eval, self._filling(30))
        yield from self._append(self._attempt.worker_log, "ends\n")
        yield from self._write_whole(self._attempt.exit, '{"code": 0}')

    def _resume(self) -> Iterator[Any]:
        """Finds the newest checkpoint that is whole. Returns its rows, twice; 0 where there is none."""
        for path in reversed(self._checkpoints()):
            state = whole_checkpoint(path)
            if state is not None and self._replay is not None and "buffered" in state:
                yield from self._unlink([one for one in self._files() if _rows(one)[1] > state["rows"]])
                if not covered(self._replay, state["rows"]):
                    state = None
            if state is not None:
                return state["rows"], state["rows"]
            yield from self._unlink([path])
        yield from self._unlink(self._files())
        return 0, 0

    def _save(self, rows: int, saved: int, *, is_last: bool) -> Iterator[str]:
        state: dict[str, Any] = {"rows": rows, "filling": self._filling(300)}
        if self._replay is not None and not is_last:
            first = max(saved, rows - BUFFER_ROWS)
            yield from self._write_whole(self._replay / f"rows-{first:012d}-{rows:012d}.npz", self._filling(200))
            state["buffered"] = True
        yield from self._write_whole(self.paths.checkpoints / f"checkpoint-{rows:012d}.pt", json.dumps(state))
        yield from self._unlink(self._checkpoints()[:-KEPT])
        oldest = int(self._checkpoints()[0].stem.rpartition("-")[2])
        yield from self._unlink([one for one in self._files() if _rows(one)[1] <= oldest - BUFFER_ROWS])

    def _checkpoints(self) -> list[Path]:
        return sorted(self.paths.checkpoints.glob("*.pt"))

    def _files(self) -> list[Path]:
        return [] if self._replay is None else sorted(self._replay.glob("*.npz"))

    def _filling(self, most: int) -> str:
        return self._dice.randbytes(self._dice.randrange(most)).hex()

    def _append(self, path: Path, text: str) -> Iterator[str]:
        with path.open("a") as file:
            file.write(text)
        self._age(path)
        yield "appended"

    def _write_whole(self, path: Path, text: str) -> Iterator[str]:
        beside = path.with_name(f".{path.name}.7.tmp")
        beside.write_text(text)
        self._age(beside)
        yield "written beside"
        beside.replace(path)
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
    """Whether the files hold the last rows of a buffer to which ``rows`` were added."""
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
    """Of the newest checkpoint that is whole there is the replay buffer, and there are its rows of both tables."""
    paths = JobPaths(root)
    found = [whole_checkpoint(path) for path in sorted(paths.checkpoints.glob("*.pt"))]
    states = [state for state in found if state is not None]
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


# -- files and pieces to play with


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
    beside = path.with_name(".beside.tmp")
    beside.write_text(text)
    beside.replace(path)


def part(path: str, content: bytes = b"x", *, offset: int = 0, is_last: bool = True) -> FilePart:
    return FilePart(path, offset, Payload.of(content, pack=True), is_last)


def tail(path: str, offset: int, content: bytes) -> Appended:
    return Appended(path, offset, Payload.of(content, pack=True))


def paths_of(some: list[Chunk]) -> list[str]:
    return [piece.path for piece in some]


JOB: dict[str, str | bytes] = {
    "spec.json": "{}",
    "robot.sha256": "abc",
    "robot/hopper.xml": "<mujoco/>",
    "robot/.assets/leg.stl": "solid",
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
ROWS_0, ROWS_1 = (f"checkpoints/{name}/rows-000000000000-000000001024.npz" for name in (REPLAY, f"{REPLAY}-of-rank-1"))
