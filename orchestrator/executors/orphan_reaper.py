"""The orphan reaper: a small process that outlives its supervisor and kills what workers left
behind.

``python -I -S orphan_reaper.py TOKEN [apart]`` reads lines from standard input. Each line is the
token of an attempt that has ended; every process whose environment still holds it is killed.
End-of-file means that the supervisor is gone, in whatever way: then every process with TOKEN is
killed. Unlike the parent-death signal and the process group, this reaches descendants of workers in
sessions of their own, even when supervisor and worker were killed together. Only a descendant with
a session of its own *and* an environment emptied on purpose escapes.

With ``apart`` it runs as a grandchild of the supervisor: Ray's processes kill their children when
they end. It is started as a file, without site-packages, so that it costs a few MiB and
milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

# Repeated here because this file runs without the package; a test compares it with the original.
VARIABLE = b"ORCHESTRATOR_TOKEN="
GATHER_S = 0.2
"""Attempts often end together; one pass over /proc serves all of them."""


def carriers(tokens: set[bytes]) -> list[int]:
    """Pids of processes whose environment holds one of ``tokens``, or a token below it
    (``token/…``).
    """
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit() and carries(int(entry), tokens)
    ]


def carries(pid: int, tokens: set[bytes]) -> bool:
    if pid == os.getpid():
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - pathlib takes long to import
            environment = b"\0" + file.read()
    except OSError:  # gone meanwhile, or another user's
        return False
    start = environment.find(b"\0" + VARIABLE)
    if start < 0:
        return False
    value = environment[start + 1 + len(VARIABLE) :].split(b"\0", 1)[0]
    return any(value == token or value.startswith(token + b"/") for token in tokens)


def kill(pid: int, tokens: set[bytes]) -> None:
    """Kill ``pid`` if it carries a token. A pidfd makes sure that the number has not been given to
    another process.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # a kernel without pidfds
        os.kill(pid, signal.SIGKILL)
        return
    try:
        if carries(pid, tokens):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def sweep(tokens: set[bytes]) -> None:
    """Kill until no carrier is left: a process that forks may escape one pass."""
    for _ in range(50):
        pids = carriers(tokens)
        if not pids:
            return
        for pid in pids:
            try:
                kill(pid, tokens)
            except OSError:  # it has ended, or belongs to another user
                continue
        time.sleep(0.02)


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(name, signal.SIG_IGN)
    if sys.argv[2:] == ["apart"] and (child := os.fork()):
        os.waitpid(child, 0)
        return
    partial = b""
    ended: set[bytes] = set()
    sweep_at = 0.0
    while True:
        patience = max(0.0, sweep_at - time.monotonic()) if ended else None
        if select.select([0], [], [], patience)[0]:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            if not ended:
                sweep_at = time.monotonic() + GATHER_S
            *lines, partial = (partial + chunk).split(b"\n")
            ended.update(filter(None, lines))
        if ended and time.monotonic() >= sweep_at:
            sweep(ended)
            ended.clear()
    sweep({sys.argv[1].encode()})


if __name__ == "__main__":
    main()
