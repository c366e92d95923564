"""What root does in a run directory of another user: a child process does it that is that user's
for good.

Whoever owns the directory decides what is in it: links, the pids of workers that are to be killed.
So root's own process touches none of that, and what is written there belongs to its owner.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.decoding import FilePath, decode
from orchestrator.core.errors import OrchestratorError, RunDirError
from orchestrator.core.files.trial_file import status_of_new_file
from orchestrator.core.text import plain
from orchestrator.machine.users import ask_owner, user_name

MOST_BYTES = 1 << 26
"""Of an answer; it may be the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A line that the child process has written; it may be the user's by then."""

    done: FilePath | None = None
    error: FilePath | None = None
    """Of the last one: why the work has failed; empty where it has not."""


class UnfinishedError(RunDirError):
    """Who acts for a user has not done all of its work."""

    def __init__(self, message: str, *, done: Sequence[str] = (), is_late: bool = False) -> None:
        """:param done: what was returned until then.
        :param is_late: it was killed, as it had not come to an end in time.
        """
        super().__init__(message)
        self.done = done
        self.is_late = is_late


def owner_if_not_root(root: Path) -> int | None:
    """The uid of the user for whom this process, which is root's, is to act in ``root``.

    None where it may act itself: it is not root's, or the directory is, or the file system gives
    every file one owner.

    :raises RunDirError: that is not known, or nobody can act for the user: this process has
        threads, and must not fork.
    """
    if os.geteuid() != 0:
        return None
    try:
        owner = _other_owner(root)
        if owner is None:
            return None
    except OSError as error:
        what = f"root cannot find out whether it may act there itself: {error.strerror}"
        raise RunDirError(
            f"{root}: {what}. Run the command as the user who owns the directory"
        ) from None
    if threading.active_count() > 1:
        what = f"belongs to {_user(owner)}, and root acts there as that user alone, which a process with threads cannot"
        raise RunDirError(f"{root}: {what}. Run the command as that user, or in a terminal")
    return owner


def may_be_anothers(root: Path) -> bool:
    """Whether this process is root's, and what is in the run directory ``root`` may be another
    user's, who owns it, or anybody's, as all may write into it.
    """
    if os.geteuid() != 0:
        return False
    try:
        return _other_owner(root) is not None or _all_may_write(root)
    except OSError:  # it cannot be found out whether the file system gives every file that owner
        return True


def is_open_to_all(root: Path) -> bool:
    """Whether this process is root's, and the run directory ``root`` is, too, but all may write into
    it.
    """
    if os.geteuid() != 0:
        return False
    try:
        return _other_owner(root) is None and _all_may_write(root)
    except OSError:  # its owner cannot be found out
        return False


def _all_may_write(root: Path) -> bool:
    """:raises OSError: that cannot be found out."""
    return bool(root.stat().st_mode & stat.S_IWOTH)


def _other_owner(root: Path) -> int | None:
    """The owner of a directory; None for root, and where the file system gives every file one
    owner.

    :raises OSError: that cannot be found out.
    """
    owner = root.stat().st_uid
    if owner == 0 or status_of_new_file(root).st_uid == owner:
        return None
    return owner


def _user(uid: int) -> str:
    try:
        return f'the user "{pwd.getpwuid(uid).pw_name}"'
    except KeyError:  # as of a user of another machine
        return f"the user number {uid}"


def done_by(
    owner: int, work: Callable[[], Iterable[str]], *, limit_s: float | None = None
) -> list[str]:
    """Call ``work`` in a child process of the user ``owner`` alone, and return what it returns; an
    iterator sends each part as soon as there is one.

    It must load nothing, nor start another program: this package may lie where the user cannot
    read.

    :param limit_s: after so long it is killed, as the user may have stopped it; None: never.
    :raises UnfinishedError: it was killed, has ended early, or has failed; then the message is that of
        its error.
    :raises RunDirError: what it has returned is none of this program's.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, "wb") as pipe:
                for message in _messages(owner, work):
                    pipe.write(json.dumps(message).encode() + b"\n")
                    pipe.flush()
        finally:
            os._exit(0)
    os.close(writing)
    content = bytearray()
    try:
        has_ended = _read_to_end(reading, content, limit_s)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # usually it has ended, and is not reaped yet
        os.waitpid(child, 0)
    try:
        messages = [decode(_Message, bytes(line)) for line in content.split(b"\n")[:-1]]
    except ValueError as error:
        what = f"the process that acts for its owner has not answered as it should ({error})"
        raise RunDirError(what) from error
    done = [message.done for message in messages if message.done is not None]
    if not has_ended:
        late = f"the process that acts for its owner has not come to an end within {limit_s:g} s"
        raise UnfinishedError(late, done=done, is_late=True)
    if not messages or messages[-1].error is None:
        early = "the process that acts for its owner has ended before its work"
        raise UnfinishedError(early, done=done)
    if messages[-1].error:
        raise UnfinishedError(messages[-1].error, done=done)
    return done


def _read_to_end(pipe: int, content: bytearray, limit_s: float | None) -> bool:
    """Add what is written to ``pipe`` to ``content``. Returns whether it has an end within
    ``limit_s``.

    :raises RunDirError: it has more than :data:`MOST_BYTES`.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    while True:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([pipe], [], [], left_s)[0]:
            return False
        chunk = os.read(pipe, 1 << 16)
        content += chunk
        if not chunk:
            return True
        if len(content) > MOST_BYTES:
            raise RunDirError("the process that acts for its owner has answered without end")


def _messages(owner: int, work: Callable[[], Iterable[str]]) -> Iterator[dict[str, str]]:
    """``done`` for each part of what ``work`` returns; at the end ``error``, empty where there is
    none.
    """
    user = _user(owner)
    try:
        _become(owner)
    except OSError as error:
        what = f"root cannot act as {user} here: {error.strerror}"
        yield {"error": f"{what}. Run the command as that user"}
        return
    try:
        for part in work():
            yield {"done": part}
        yield {"error": ""}
    except OrchestratorError as error:
        yield {"error": str(error)}
    except OSError as error:
        advice = _whom_to_ask(error) or f"ask {user_name(owner)}"
        yield {"error": f"{_what_failed(error)}; {advice}. Root acts there as {user} alone"}
    except Exception as error:
        what = f"an unexpected error, {error!r}, of root's process that acts as {user}"
        yield {"error": f"{what}. Run the command as that user"}


def _what_failed(error: OSError) -> str:
    why = error.strerror or str(error)
    return plain(f"{error.filename}: {why}" if isinstance(error.filename, str) else why)


def _whom_to_ask(error: OSError) -> str:
    """Where the user may not read or change what belongs to another one; empty otherwise."""
    if isinstance(error, PermissionError) and isinstance(error.filename, str):
        return ask_owner(Path(error.filename))
    return ""


def _become(owner: int) -> None:
    """Give up every right of root."""
    try:
        account = pwd.getpwuid(owner)
    except KeyError:  # as of a user of another machine
        group = owner
        groups = []
    else:
        group = account.pw_gid
        groups = os.getgrouplist(account.pw_name, account.pw_gid)
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(owner, owner, owner)
