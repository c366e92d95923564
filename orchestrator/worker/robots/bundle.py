"""A robot as a self-contained folder: its MJCF and every file that it names, with a content hash."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.robot_hash import robot_hash
from orchestrator.worker.robots.file_collector import (
    MAX_TOTAL_BYTES,
    BundleError,
    FileCollector,
    RobotFile,
    why_outside,
)


@dataclass(frozen=True)
class Bundle:
    """The files that make up a robot."""

    main: str
    """Path of the main MJCF in the copy."""
    xml: Path
    """The user's main MJCF."""
    files: Mapping[str, RobotFile]
    """By path in the copy."""

    @functools.cached_property
    def hash(self) -> str:
        return robot_hash(self.main, {name: file.content for name, file in self.files.items()})

    def outside(self, job_folder: str | None = None) -> str | None:
        """Return which file needs ``allow_outside``, and why, or None if all lie below the folder of
        the main MJCF or below ``job_folder``.
        """
        folders = [self.xml.parent]
        if job_folder is not None:
            folders.append(Path(job_folder))
        for name, file in self.files.items():
            if name != self.main and (why := why_outside(file.named, file.source, folders)):
                return why
        return None

    def write(self, folder: Path) -> Path:
        """Write all files below ``folder``. Return the path of the main MJCF there."""
        for name, file in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        return folder / self.main

    def with_users_paths(self, text: str, copy: Path) -> str:
        """``text`` with the user's paths in the place of those of a copy.

        :param copy: its main MJCF.
        """
        return text.replace(
            str(copy).removesuffix(self.main), str(self.xml).removesuffix(self.main)
        )


def collect(xml: Path, limit_bytes: int = MAX_TOTAL_BYTES) -> Bundle:
    """Read ``xml`` and every file that it names.

    :param limit_bytes: size of all of them together.

    :raises BundleError: a file is missing, unreadable, no regular file, too large, or includes
        itself.
    """
    collector = FileCollector(xml, limit_bytes)
    files = collector.files()
    origin = os.path.commonpath([target.parent for target in files])
    main = collector.main.relative_to(origin).as_posix()
    if main.encode(errors="ignore").decode() != main:
        raise BundleError(
            f"{xml}: MuJoCo reads no name that is not UTF-8; rename the file or folder"
        )
    named = {target.relative_to(origin).as_posix(): file for target, file in files.items()}
    return Bundle(main=main, xml=collector.main, files=named)
