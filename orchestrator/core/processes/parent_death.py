"""The kernel's parent-death signal, by which a process does not outlive the one that has started
it.

    python -m orchestrator.core.processes.parent_death PARENT MODULE ARGUMENT…

is ``python -m MODULE ARGUMENT…`` that is killed with the process PARENT, which starts it. The
signal is set before MODULE is imported: a module may import for a minute on a busy machine.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

from orchestrator.core.exit_codes import ExitCode

_PR_SET_PDEATHSIG = 1


def command_of_child(module: str, *arguments: str) -> list[str]:
    """The command of a child process of this one that runs ``module`` and is killed with this
    process.

    It is also killed when the thread ends that has started it: start it from one that lives as long
    as it is needed.
    """
    return [
        sys.executable,
        "-m",
        "orchestrator.core.processes.parent_death",
        str(os.getpid()),
        module,
        *arguments,
    ]


def die_with_parent() -> None:
    """Let the kernel kill this process with the thread that has started it, unless that has ended
    already.
    """
    _set_signal(signal.SIGKILL)


def outlive_parent() -> None:
    """Undo :func:`die_with_parent`, in a process that has another way to end with its parent from
    here on.
    """
    _set_signal(0)


def _set_signal(number: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        print(f"the parent-death signal could not be set: {reason}", file=sys.stderr)


def main(parent: str, module: str, *arguments: str) -> None:
    """Run ``module`` in this process, unless ``parent`` has ended before the signal was set."""
    die_with_parent()
    if os.getppid() != int(parent):
        os._exit(ExitCode.ORPHANED)
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
