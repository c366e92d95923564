"""Calling code of the user's: a process that it forks must not go on as a second one of this
program.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """For a block that calls code of the user's: it is left by this process alone.

    A process that the code has forked, and that comes back from it, ends here: with the exit code
    of a SystemExit, with 1 and a traceback after another exception, and otherwise with 0. As in
    :mod:`multiprocessing`, what its parent has registered with :mod:`atexit` is not called in it.
    """
    own = os.getpid()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        if os.getpid() != own:
            _end(error)


def _end(error: BaseException | None) -> None:
    code = 0
    try:
        if isinstance(error, SystemExit):
            code = _exit_code(error)
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # whatever has become of the output
        os._exit(code)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1
