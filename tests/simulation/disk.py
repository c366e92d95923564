"""The disk of a simulated world: real files in a scratch folder, every change of which is seen.

Python announces what it does to files by audit events (PEP 578), wherever that is called from. So
nothing has to be patched for a change to be a point at which the supervisor may die, or be refused
for a full disk; and a change outside of the scratch folder, a process or a connection ends the
simulation with :class:`UnsimulatedError`. Two things have no event: ``fsync``, which goes through
the ``os`` of :mod:`.seams`, and the writes of SQLite, which count at each commit.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import World

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "subprocess.Popen",
    "os.fork",
    "os.forkpty",
    "os.exec",
    "os.posix_spawn",
    "os.system",
    "os.kill",
    "os.killpg",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chown",
    "socket.connect",
    "socket.bind",
    "_thread.start_new_thread",
)
"""Audit events of what no simulated supervisor may do: nothing here would notice it."""
LEDGER = "ledger.sqlite3"


class UnsimulatedError(BaseException):
    """The program did something that the simulated world does not have."""


class Disk:
    """Files below ``root``, and what of them a power cut may take away.

    Names (created, renamed, removed) reach the disk in order, all of them at the latest when a
    folder is synchronised. The content of a file does when the file is.
    """

    def __init__(self, root: Path, world: World) -> None:
        self.root = root
        self.run_dir = root / "run"
        self._saved = root / "saved"
        self._saved.mkdir()
        self._world = world
        self._prefix = f"{root}/"
        self._run_prefix = f"{self.run_dir}/"
        self._names: list[tuple[str, str, str, str]] = []
        """Changes of names that a power cut may undo: kind, path, other path, saved content."""
        self._synced: dict[int, tuple[int, int]] = {}
        """By inode: size and time of the content that is on the disk."""
        self._commits: list[int] = []
        """Size of the write-ahead log after each commit."""
        self._log_id = b""
        self._tickets = 0
        self._is_saving = False

    # -- what the program does

    def audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._world.is_own_work or self._is_saving:
            return
        if event in FORBIDDEN:
            raise UnsimulatedError(f"{event} {arguments}")
        HANDLERS[event](self, *arguments)

    def opened(self, path: Any, _mode: Any, flags: int) -> None:
        if not flags & WRITES or isinstance(path, int) or flags & os.O_TMPFILE == os.O_TMPFILE:
            return
        name = self._named(path)
        if name is None:
            return
        is_new = not os.path.lexists(name)
        self._world.changes(f"{'create' if is_new else 'open'} {self._shown(name)}")
        if is_new and flags & os.O_CREAT:
            self._names.append(("create", name, "", ""))

    def renamed(self, source: Any, target: Any, _from: int = -1, _to: int = -1) -> None:
        before, after = self._named(source), self._named(target)
        assert before is not None
        assert after is not None
        self._world.changes(f"rename {self._shown(before)} to {self._shown(after)}")
        if os.path.lexists(before):
            saved = self._save(after) if os.path.isfile(after) else ""  # noqa: PTH113 - of texts
            self._names.append(("rename", after, before, saved))

    def removed(self, path: Any, folder: int = -1) -> None:
        name = self._named(path, folder)
        if name is None or not os.path.lexists(name):
            return
        self._world.changes(f"remove {self._shown(name)}")
        if stat.S_ISREG(os.lstat(name).st_mode):
            self._names.append(("remove", name, "", self._save(name)))

    def made_folder(self, path: Any, _mode: int = 0, folder: int = -1) -> None:
        name = self._named(path, folder)
        if name is None or os.path.lexists(name):
            return
        self._world.changes(f"mkdir {self._shown(name)}")
        self._names.append(("mkdir", name, "", ""))

    def removed_folder(self, path: Any, folder: int = -1) -> None:
        name = self._named(path, folder)
        if name is None or not os.path.isdir(name):  # noqa: PTH112 - of texts
            return
        self._world.changes(f"rmdir {self._shown(name)}")
        self._names.append(("rmdir", name, "", ""))

    def touched(self, path: Any, *_: Any) -> None:
        self._named(path)

    def connected(self, database: Any) -> None:
        name = self._named(str(database).removeprefix("file://").partition("?")[0])
        if name is not None and not os.path.lexists(name):
            self._world.changes(f"create {self._shown(name)}")
            self._names.append(("create", name, "", ""))

    def fsync(self, descriptor: int) -> None:
        """The content of the file, or all names until now, are on the disk."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._world.changes("fsync names")
            self._names.clear()
        else:
            self._world.changes("fsync content")
        self._synced[status.st_ino] = (status.st_size, status.st_mtime_ns)

    def committed(self) -> None:
        """A transaction of the ledger is in its write-ahead log."""
        log = self.run_dir / f"{LEDGER}-wal"
        if not log.exists():
            self._commits.clear()
            return
        with log.open("rb") as file:
            log_id = file.read(24)
        if log_id != self._log_id:
            self._commits.clear()
            self._log_id = log_id
        self._commits.append(log.stat().st_size)

    # -- the end of a process, and of power

    def kept_ledger(self) -> Callable[[], None]:
        """Keeps the files of the ledger as they are now. Return what puts them back.

        A process that is killed closes no database; the simulated one does, when its stack is
        unwound.
        """
        contents = {
            path: path.read_bytes()
            for path in sorted(self.run_dir.glob(f"{LEDGER}*"))
            if not path.name.endswith("-shm")
        }

        def put_back() -> None:
            for path in self.run_dir.glob(f"{LEDGER}*"):
                if path.name.endswith(("-shm", "-wal", "-journal")):
                    path.unlink()
            for path, content in contents.items():
                path.write_bytes(content)

        return put_back

    def lose_power(self, choice: int) -> None:
        """Take away what a power cut takes. :param choice: seed of what that is."""
        chance = random.Random(choice)
        self._lose_commits(chance)
        self._lose_contents(chance)
        kept = chance.choice((0, len(self._names), chance.randint(0, len(self._names))))
        for kind, path, other, saved in reversed(self._names[kept:]):
            _undo(kind, path, other, saved)
        if not (self.run_dir / LEDGER).exists():
            for path in self.run_dir.glob(f"{LEDGER}-*"):
                path.unlink()
        self._names.clear()

    def _lose_commits(self, chance: random.Random) -> None:
        log = self.run_dir / f"{LEDGER}-wal"
        commits = self._commits
        if not log.exists() or len(commits) < 2 or chance.random() < 0.5:
            return
        size = chance.choice((commits[-2], chance.choice(commits)))
        if log.stat().st_size > 3 << 20 or size > log.stat().st_size:
            return
        os.truncate(log, size)
        del commits[commits.index(size) + 1 :]

    def _lose_contents(self, chance: random.Random) -> None:
        for path in sorted(self.run_dir.rglob("*")):
            if path.name.startswith(LEDGER) or not path.is_file():
                continue
            status = path.stat()
            is_synced = self._synced.get(status.st_ino) == (status.st_size, status.st_mtime_ns)
            if not is_synced and chance.random() < 0.5:
                os.truncate(path, 0)

    # -- names

    def _named(self, path: Any, folder: int = -1) -> str | None:
        """The absolute path; None for what is no file of the disk and may be changed."""
        name = os.fspath(path) if not isinstance(path, int) else f"/proc/self/fd/{path}"
        name = name.decode() if isinstance(name, bytes) else name
        if folder >= 0:
            name = str(Path(f"/proc/self/fd/{folder}").readlink() / name)
        if name.startswith(self._prefix):
            return name
        if name in (os.devnull, ":memory:", "") or "__pycache__" in name:
            return None
        raise UnsimulatedError(f"a file outside of the simulated disk is changed: {name}")

    def _shown(self, name: str) -> str:
        return name.removeprefix(self._run_prefix)

    def _save(self, name: str) -> str:
        self._tickets += 1
        saved = str(self._saved / str(self._tickets))
        self._is_saving = True
        try:
            os.link(name, saved)
        finally:
            self._is_saving = False
        return saved


def _undo(kind: str, path: str, other: str, saved: str) -> None:
    match kind:
        case "create":
            Path(path).unlink(missing_ok=True)
        case "rename":
            if os.path.lexists(path):
                Path(path).rename(other)
            if saved:
                os.link(saved, path)
        case "remove":
            if not os.path.lexists(path):
                os.link(saved, path)
        case "mkdir":
            shutil.rmtree(path, ignore_errors=True)
        case "rmdir":
            Path(path).mkdir(exist_ok=True)


HANDLERS: dict[str, Callable[..., None]] = {
    "open": Disk.opened,
    "os.rename": Disk.renamed,
    "os.remove": Disk.removed,
    "os.mkdir": Disk.made_folder,
    "os.rmdir": Disk.removed_folder,
    "os.chmod": Disk.touched,
    "os.utime": Disk.touched,
    "sqlite3.connect": Disk.connected,
}
"""Audit events of changes to files, and who acts on them."""
SEEN = frozenset((*HANDLERS, *FORBIDDEN))

_watching: list[Disk] = []
_hooked: list[bool] = []


def watch(disk: Disk) -> None:
    """Let ``disk`` see what the process does from now on, until :func:`unwatch`."""
    if not _hooked:  # an audit hook stays for good
        _hooked.append(True)
        sys.addaudithook(_audit)
    _watching.append(disk)


def unwatch() -> None:
    _watching.clear()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in SEEN:
        _watching[-1].audited(event, arguments)


def full_error() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sqlite_error(code: int, text: str) -> sqlite3.OperationalError:
    """As SQLite raises it, with its code."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error
