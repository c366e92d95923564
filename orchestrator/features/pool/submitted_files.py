"""What a submission names by path: the file of its robot, and that of the policy to start from.

They are read when there is room for the training, which may be long after the submission. Whether
they are still what was submitted is seen by their digests.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.paths import JobPaths
from orchestrator.jobfile.robot_arguments import RobotArgument


def contents(robot: RobotArgument) -> dict[str, bytes]:
    """What is in the file of a robot, by its path; or in all files of its folder, by their path
    below that, where this has been written for it. Meshes of a file are not looked at.

    What cannot be read is left out: the examination says so.
    """
    if not robot.label:
        return _read({str(robot.file): robot.file})
    folder = robot.file.parent
    return _read({str(file.relative_to(folder)): file for file in sorted(folder.rglob("*"))})


def digests(of_robot: Mapping[str, bytes], init: str | None) -> dict[str, str]:
    """SHA-256 of each file of a robot, and of the policy to start from if that is a file.

    :param of_robot: as of :func:`contents`.
    """
    policy = {} if init is None else _read({init: Path(init)})
    files = {**of_robot, **policy}
    return {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}


def _read(files: Mapping[str, Path]) -> dict[str, bytes]:
    """By the same names, without what cannot be read, such as a folder."""
    found = {}
    for name, file in files.items():
        with contextlib.suppress(OSError, ValueError):
            found[name] = read_regular(file)
    return found


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The paths of which the digests differ, or that one of both does not have."""
    return [path for path in {**before, **now} if before.get(path) != now.get(path)]


def is_policy_unchanged(init: str, job: JobPaths) -> bool:
    """Whether the policy at ``init``, a file or the directory of a job, was not written to since
    ``job`` has a copy of it; it may have been removed.
    """
    given = Path(init)
    of_job = JobPaths(given)
    files = [of_job.model, of_job.vecnormalize] if given.is_dir() else [given]
    try:
        copied_at = job.init.stat().st_mtime_ns
        # A copy may have the modification time of what it is a copy of; its change time is its own.
        return all(file.stat().st_ctime_ns < copied_at for file in files if file.exists())
    except OSError:  # the copy is gone, or the policy cannot be looked at
        return False
