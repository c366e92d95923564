"""As ``sitecustomize``: this process opens a file that is made or replaced below $SLOW_FOLDER only
$SLOW_S seconds after it has looked for it, and the one before until then, as on a network file
system that keeps names. What is appended is there at once.
"""

# ruff: noqa: PTH116

import builtins
import errno
import io
import os
import time

FOLDER, DELAY_S = os.environ["SLOW_FOLDER"], float(os.environ["SLOW_S"])
open_at_once = io.open
noticed: dict[str, tuple[int, float]] = {}
"""Inode of a file, and when it was first seen."""
before: dict[str, int] = {}
"""Descriptors of files as they were."""


def open_slowly(file, mode="r", *arguments, **options):  # type: ignore[no-untyped-def]
    if (
        not isinstance(file, str | os.PathLike)
        or not os.fspath(file).startswith(FOLDER)
        or "r" not in mode
    ):
        return open_at_once(file, mode, *arguments, **options)
    name = os.fspath(file)
    inode = os.stat(name).st_ino
    if noticed.get(name, (0, 0.0))[0] != inode:
        noticed[name] = inode, time.monotonic()
    if time.monotonic() - noticed[name][1] >= DELAY_S:
        if name in before:
            os.close(before[name])
        before[name] = os.open(name, os.O_RDONLY)
        return open_at_once(file, mode, *arguments, **options)
    if name not in before:
        raise FileNotFoundError(errno.ENOENT, "not shown yet", name)
    options.pop("opener", None)
    return open_at_once(f"/proc/self/fd/{before[name]}", mode, *arguments, **options)


builtins.open = io.open = open_slowly
