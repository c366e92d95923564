"""``fork`` whose new process is a child of this process's parent, which watches and reaps it.

It is Linux's ``clone(2)`` with ``CLONE_PARENT``, otherwise called as the C library calls it for
``fork``. Handlers of ``pthread_atfork`` do not run: they stop and restart threads of libraries, and
this process has one thread only.
"""

from __future__ import annotations

import ctypes
import os
import signal

_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
_CLONE_CHILD_CLEARTID = 0x200000
_CLONE_CHILD_SETTID = 0x1000000
_PR_GET_TID_ADDRESS = 40


def problem() -> str | None:
    """Return why this process cannot be forked so, or None if it can."""
    machine = os.uname().machine
    n_threads = len(os.listdir("/proc/self/task"))
    if machine not in _SYS_CLONE:
        return f"processors of the kind {machine} are not supported"
    if n_threads > 1:
        return f"it has {n_threads} threads, of which a forked process would have one"
    if not _thread_id_address():
        return "the kernel does not say where the C library keeps its thread id (CONFIG_CHECKPOINT_RESTORE)"
    return None


def fork_sibling() -> int:
    """Fork where :func:`problem` is None, as :func:`os.fork`: 0 in the new process, its pid in this
    one.

    :raises OSError: there is no new process; ``strerror`` says why.
    """
    machine = os.uname().machine
    address = _thread_id_address()
    flags = _CLONE_PARENT | _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID | signal.SIGCHLD
    # Processors differ in the order of the last two: where the thread id is kept, and the thread's
    # memory, as it is.
    last = (address, 0) if machine == "x86_64" else (0, address)
    call = [ctypes.c_long(value) for value in (_SYS_CLONE[machine], flags, 0, 0, *last)]
    # PyDLL keeps the interpreter's lock, as the calls around it demand.
    libc = ctypes.PyDLL(None, use_errno=True)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = libc.syscall(*call)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


def _thread_id_address() -> int:
    """Return where the C library keeps the id of the main thread, which the kernel sets in the new
    process; 0 if unknown.
    """
    address = ctypes.c_long(0)
    ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    return address.value
