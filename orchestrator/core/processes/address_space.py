"""The limit on the address space of a process (`ulimit -v`), which libraries meet without naming it."""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence

_OUT_OF_MEMORY = re.compile(
    r"failed to map segment|cannot allocate|could not allocate|allocation .*failed|MemoryError|"
    r"not enough memory|bad_alloc|can't start new thread",
    re.IGNORECASE,
)


def with_address_limit(message: str, causes: Sequence[str] = ()) -> str:
    """Append the limit and its value, if there is one and ``message``, or one of its causes, says
    that memory ran out.
    """
    if "ulimit -v" in message:  # a child has said it
        return message
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or not any(map(_OUT_OF_MEMORY.search, (message, *causes))):
        return message
    return (
        f"{message}; the address space is limited to {limit >> 20:,} MiB (`ulimit -v` is "
        f"{limit >> 10}): raise this limit, or remove it with `ulimit -v unlimited`"
    )
