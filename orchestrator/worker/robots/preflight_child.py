"""Examines robots, tasks and environments in a child process before any launch.

``python -m orchestrator.worker.robots.preflight_child`` reads one :class:`ExaminationRequest` per
line from stdin and writes one :class:`ExaminationAnswer` per line to stdout, until the end of its
input or an answer with ``process_exits``. Anything wrong with a robot or environment is an answer's
``problem``, never a traceback. Gymnasium and torch are imported only when a request needs them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from orchestrator.core.errors import UsageError
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.worker.robots.compiling import too_large
from orchestrator.worker.robots.robot_preparation import prepare, refusal, unfit
from orchestrator.worker.robots.unfit import UnfitError
from orchestrator.worker.runtime import failures, supervisor_connection


def check(request: ExaminationRequest) -> ExaminationAnswer:
    """Answer one request; never raises because of what the request names."""
    try:
        with contextlib.ExitStack() as cleanup:
            if request.init:
                return _check_with_init(request, cleanup)
            return prepare(request, cleanup).answer
    except UnfitError as error:
        return unfit(error)
    except OSError as error:
        return refusal(
            f"{error.filename or request.robot}: {error.strerror or error}", errno=error.errno
        )
    except MemoryError:
        return refusal(f"{request.robot}: {too_large(request.memory_mib)}")
    except Exception as error:  # the other requests must be answered, whatever caused this
        named = request.robot or request.entry_point or request.env
        return refusal(f"{named}: {failures.describe(error)}")


def _check_with_init(
    request: ExaminationRequest, cleanup: contextlib.ExitStack
) -> ExaminationAnswer:
    """Answer a request of a job that starts from another policy.

    :raises UnfitError: it cannot be trained, or cannot start from that policy.
    """
    # Here, before the user's folder is on the path.
    from orchestrator.worker.training import start_policy

    prepared = prepare(request, cleanup)
    if prepared.make_environment is None:
        return prepared.answer
    try:
        return start_policy.check(request, prepared.answer, prepared.make_environment())
    except start_policy.UnfitStartPolicyError as error:
        raise UnfitError(f"init: {error}", "init") from None
    except UsageError as error:
        raise UnfitError(f"init: {error}", "settings") from None


def main() -> NoReturn:
    supervisor_connection.attach()  # a hanging environment must not outlive the process that asked
    # stdout is for answers only: output of MuJoCo's C code or a user's environment goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as in a worker
    for line in sys.stdin.buffer:
        answer = check(ExaminationRequest.from_line(line))
        answers.write(answer.to_line())
        answers.flush()
        if answer.process_exits:
            break
    sys.stderr.flush()
    os._exit(0)  # a normal exit would wait for the threads of the user's code


if __name__ == "__main__":
    main()
