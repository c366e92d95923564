"""What files hold, and how many are open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

SELECTABLE = 1024
"""``select.select`` refuses descriptors from here on."""


def tree(root: Path) -> dict[str, bytes]:
    """Content of every file that is not hidden, by its path."""
    states_or_none = [
        path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")
    ]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in states_or_none}


@contextlib.contextmanager
def low_descriptors_taken() -> Iterator[None]:
    """Every file that is opened within the block has a descriptor that ``select.select`` refuses."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2 * SELECTABLE:
        pytest.skip("the limit on open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * SELECTABLE, before[1]))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < SELECTABLE:
            taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
