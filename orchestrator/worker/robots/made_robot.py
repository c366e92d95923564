"""Robots that a function of the user makes: ``make(params, folder) -> path``."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core.messages import ExaminationRequest
from orchestrator.worker.robots.compiling import memory_limit
from orchestrator.worker.robots.env_check import UnfitError
from orchestrator.worker.runtime import failures, user_env


def make(request: ExaminationRequest, folder: Path) -> Path:
    """Call ``request.robot_maker``; return the path of the MJCF.

    :param folder: an empty one, for the files of the robot.
    :raises UnfitError: there is no such function, it raises, or it returns something else.
    """
    maker = str(request.robot_maker)
    try:
        function = user_env.load(maker)
    except user_env.EntryPointError as error:
        raise UnfitError(f"{maker}: {error}", "settings") from None
    except (Exception, SystemExit) as error:
        text = f"importing its module raises {failures.describe(error)}"
        raise UnfitError(f"{maker}: {text}", "settings") from None
    own = os.getpid()
    try:
        with memory_limit(request.memory_mib):
            made = function(dict(request.params), folder)
    except MemoryError:
        limit = f"the {request.memory_mib:,} MiB available" if request.memory_mib else "there is"
        raise UnfitError(f"{request.robot}: takes more memory than {limit}") from None
    except (Exception, SystemExit) as error:
        raise UnfitError(f"{request.robot}: {failures.describe(error)}") from None
    finally:
        if os.getpid() != own:  # a child that it has forked: one process answers
            os._exit(1)
    path = folder / os.fsdecode(made) if isinstance(made, str | os.PathLike) else folder
    if not path.is_file():
        returned = str(made).removeprefix(f"{folder}{os.sep}")
        raise UnfitError(
            f"{request.robot}: returns {returned:.80}, expected the path of the MJCF that it has written"
        )
    return path
