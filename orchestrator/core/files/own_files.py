"""Open files of this process alone: those that are forked from it do not have them.

A lock by :func:`fcntl.flock` belongs to everybody who has inherited the file. A process that a
program has forked, as :mod:`multiprocessing` does, would keep a lock when the program has ended, or
has given it up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_own: set[int] = set()


@contextlib.contextmanager
def kept_from_forks(descriptor: int) -> Iterator[None]:
    """A process that is forked within the block has ``/dev/null`` in the place of ``descriptor``.

    The number stays taken there, since an object that has it may close it some time.
    """
    _own.add(descriptor)
    try:
        yield
    finally:
        _own.discard(descriptor)


def _let_go() -> None:
    if _own:
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in _own:
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)
        _own.clear()


os.register_at_fork(after_in_child=_let_go)
