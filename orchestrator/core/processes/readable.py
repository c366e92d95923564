"""Which pipes and sockets can be read."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


File = TypeVar("File", bound=HasDescriptor)


def readable(files: Iterable[File], timeout_s: float = 0.0) -> list[File]:
    """Those of ``files`` that can be read, or have ended. Waits up to ``timeout_s`` for the first;
    without any files, for the whole time.

    Unlike :func:`select.select`, it takes descriptors from 1,024 on: a supervisor of some 500
    workers has so many.
    """
    by_descriptor = {file.fileno(): file for file in files}
    poll = select.poll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(1000 * timeout_s)]
