"""``python -m orchestrator.worker.template CONTROL`` imports what workers import, and forks a
worker for each order.

An order is a :class:`~orchestrator.core.messages.ForkOrder` on the socket with the number CONTROL,
whose end-of-file ends the template. A forked worker is a child of the supervisor
(:mod:`~orchestrator.worker.runtime.sibling_fork`). It goes on as one that is exec'ed: session, log,
environment and channel are its own, and it reads its spec and imports the user's code itself.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ForkAnswer, ForkOrder
from orchestrator.core.processes.environment_variables import (
    CHANNEL_VARIABLE,
    FORKED,
    START_VARIABLE,
    TOKEN_VARIABLE,
)
from orchestrator.core.processes.parent_death import die_with_parent
from orchestrator.core.processes.process_setup import block_checkpoint_signal, set_up_process
from orchestrator.worker import __main__ as worker
from orchestrator.worker.runtime import failures, import_speed, sibling_fork

LARGEST_ORDER_BYTES = 1 << 17


def import_packages() -> None:
    """Import what a worker with a built-in task imports. Nothing is made or computed, so that no
    thread starts.
    """
    with import_speed.fast_imports():
        import torch  # noqa: F401 - first, as in a worker

        from orchestrator.worker.envs import vec_env  # noqa: F401
        from orchestrator.worker.runtime import sb3_internals
        from orchestrator.worker.training import train  # noqa: F401
    sb3_internals.keep_compiler_out()


def serve(prepare: Callable[[], object], run: Callable[[list[str]], NoReturn]) -> None:
    """Call ``prepare`` once, and then ``run`` in a process forked for each order, with the
    arguments in the order.

    A process that cannot be forked safely says so, and ends.
    """
    set_up_process()
    block_checkpoint_signal()  # a forked worker unblocks it once it has a handler
    die_with_parent()
    token_memory = _token_memory()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        try:
            prepare()
            problem = sibling_fork.problem()
        except Exception as error:
            problem = f"its imports failed: {failures.describe(error)}"
        control.sendall(ForkAnswer(problem=problem).to_line())
        while problem is None:
            line, descriptors, *_ = socket.recv_fds(control, LARGEST_ORDER_BYTES, 2)
            if not line:
                return
            try:
                is_worker = sibling_fork.fork_sibling() == 0
            except OSError as error:
                is_worker = False
                os.write(descriptors[-1], ForkAnswer(problem=error.strerror).to_line())
            if is_worker:
                control.close()
                _become_worker(line, descriptors, token_memory, run)
            for descriptor in descriptors:
                os.close(descriptor)


def _become_worker(
    line: bytes,
    descriptors: Sequence[int],
    token_memory: ctypes.Array[ctypes.c_char],
    run: Callable[[list[str]], NoReturn],
) -> NoReturn:
    """Announce this process on its channel, take on what an order says, and run when the supervisor
    answers.
    """
    try:
        log, channel = descriptors
        # Announced while it is in the template's process group, which is killed with the template.
        os.write(channel, ForkAnswer(pid=os.getpid()).to_line())
        os.setsid()
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        order = ForkOrder.from_line(line)
        own = {CHANNEL_VARIABLE: str(channel), START_VARIABLE: FORKED}
        for name, value in {**order.environment, **own}.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if len(token_memory):
            token = os.fsencode(os.environ.get(TOKEN_VARIABLE, ""))
            token_memory.raw = token.ljust(len(token_memory), b"\0")
        # As in a new process: a user's module may draw when imported. Python's own generator is seeded
        # by the fork.
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        sys.argv[1:] = order.arguments
        os.chdir(order.directory)
        if os.getppid() == order.parent:
            os.write(channel, ForkAnswer(pid=os.getpid(), is_ready=True).to_line())
            run(list(order.arguments))
    except BaseException:
        traceback.print_exc()
        os._exit(ExitCode.ERROR)
    os._exit(ExitCode.ORPHANED)


def _token_memory() -> ctypes.Array[ctypes.c_char]:
    """Return the memory of the token that ``/proc/PID/environ`` shows, by which the orphan reaper finds a
    process.

    A forked process has that memory of the template, whose token is as long as any.
    """
    size = len(os.fsencode(os.environ.get(TOKEN_VARIABLE, "")))
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address = getenv(TOKEN_VARIABLE.encode())
    return (ctypes.c_char * size).from_address(address) if address else (ctypes.c_char * 0)()


if __name__ == "__main__":
    serve(import_packages, worker.main)
