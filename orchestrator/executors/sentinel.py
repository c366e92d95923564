"""The sentinel: a small process that outlives its supervisor by one sweep.

``python -I -S sentinel.py TOKEN`` reads lines from standard input. Each line is the token of an
attempt that has ended; every process whose environment still carries it is killed. End-of-file
means that the supervisor is gone, in whatever way: then every process with TOKEN is killed. That
reaches what neither the parent-death signal nor the process group does: descendants of workers in
sessions of their own, even when supervisor and worker were killed together.

Started as a file, without site-packages, so that it costs a few MiB and milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import sys

# The name stands here again because this file runs without the package; a test holds them equal.
VARIABLE = b"ORCHESTRATOR_TOKEN="
PAUSE_S = 0.2


def carriers(tokens: set[bytes]) -> list[int]:
    """Pids of processes whose environment holds one of ``tokens`` or something below it (``token/…``)."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read()
        except OSError:  # gone meanwhile, or another user's
            continue
        start = environment.find(VARIABLE)
        if start < 0:
            continue
        value = environment[start + len(VARIABLE) :].split(b"\0", 1)[0]
        if any(value == token or value.startswith(token + b"/") for token in tokens):
            found.append(int(entry))
    return found


def sweep(tokens: set[bytes]) -> None:
    """Kill until nothing is left: a process that forks may be a step ahead of one pass."""
    for _ in range(50):
        pids = carriers(tokens)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        select.select([], [], [], 0.02)


def main() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    token = sys.argv[1].encode()
    partial = b""
    while True:
        chunk = os.read(0, 65536)
        if not chunk:
            break
        # Ends come in bursts; one pass over /proc serves all of a burst.
        select.select([], [], [], PAUSE_S)
        *lines, partial = (partial + chunk).split(b"\n")
        if tokens := set(filter(None, lines)):
            sweep(tokens)
    sweep({token})


if __name__ == "__main__":
    main()
