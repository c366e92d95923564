"""Examines robots, tasks and environments in a child process before any launch.

``python -m orchestrator.worker.robots.preflight_child`` reads one :class:`ExaminationRequest` per
line from stdin and writes one :class:`ExaminationAnswer` per line to stdout, until the end of its
input or an answer with ``process_exits``. Anything wrong with a robot or environment is an answer's
``problem``, never a traceback. Gymnasium and torch are imported only when a request needs them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from orchestrator.core.errors import UsageError
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.processes import users_code
from orchestrator.worker.robots.compiling import too_large
from orchestrator.worker.robots.env_check import UnfitError
from orchestrator.worker.robots.file_collector import BundleError
from orchestrator.worker.robots.robot_preparation import (
    ModelMeasurement,
    RobotPreparation,
    refusal,
    unfit,
)
from orchestrator.worker.runtime import failures, supervisor_connection

EnvironmentUse: TypeAlias = Callable[[ExaminationAnswer, Any], ExaminationAnswer]
"""Called with the simulation of a task, or with the spaces of another environment's observations
and actions."""


def check(request: ExaminationRequest) -> ExaminationAnswer:
    """Answer one request; never raises because of what the request names."""
    try:
        with contextlib.ExitStack() as cleanup:
            measure_model: ModelMeasurement | None = None
            use: EnvironmentUse | None = None
            if request.measured_by is not None:
                measure_model = importlib.import_module(request.measured_by).measured_model
            else:
                use = _start_policy_check(request)
            preparation = RobotPreparation(
                cleanup, makes_simulation=use is not None, measure_model=measure_model
            )
            prepared = preparation.prepared(request)
            if use is None or prepared.environment is None:
                return prepared.answer
            return use(prepared.answer, prepared.environment)
    except (BundleError, UnfitError) as error:
        return unfit(error)
    except OSError as error:
        return refusal(
            f"{error.filename or request.robot}: {error.strerror or error}", errno=error.errno
        )
    except MemoryError:
        return refusal(f"{request.robot}: {too_large(request.memory_mib)}")
    except Exception as error:  # the other requests must be answered, whatever caused this
        return refusal(failures.describe(error))


def _start_policy_check(request: ExaminationRequest) -> EnvironmentUse | None:
    """Return the check of ``init``, or None without one."""
    if not request.init:
        return None
    # Here, before the user's folder is on the path.
    from orchestrator.worker.training import start_policy

    def check_init(answer: ExaminationAnswer, environment: Any) -> ExaminationAnswer:
        try:
            return start_policy.check(request, answer, environment)
        except start_policy.UnfitStartPolicyError as error:
            raise UnfitError(f"init: {error}", "init") from None
        except UsageError as error:
            raise UnfitError(f"init: {error}", "settings") from None

    return check_init


def main() -> NoReturn:
    supervisor_connection.attach()  # a hanging environment must not outlive the process that asked
    # stdout is for answers only: output of MuJoCo's C code or a user's environment goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as in a worker
    for line in sys.stdin.buffer:
        with users_code.in_this_process():
            answer = check(ExaminationRequest.from_line(line))
        answers.write(answer.to_line())
        answers.flush()
        if answer.process_exits:
            break
    sys.stderr.flush()
    os._exit(0)  # a normal exit would wait for the threads of the user's code


if __name__ == "__main__":
    main()
