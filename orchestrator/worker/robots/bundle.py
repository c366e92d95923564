"""A robot as a self-contained folder: its MJCF and every file that it names, with a content hash."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core.robot_hash import robot_hash
from orchestrator.worker.robots.file_collector import (
    MAX_TOTAL_BYTES,
    BundleError,
    FileCollector,
    why_outside,
)


@dataclass(frozen=True)
class Bundle:
    """The files that make up a robot."""

    main: str
    """Path of the main MJCF in the copy."""
    xml: Path
    """The user's main MJCF."""
    contents: Mapping[str, bytes] = field(repr=False)
    """Path in the copy → content."""
    sources: Mapping[str, Path] = field(repr=False)
    """Path in the copy → the user's own file."""
    named: Mapping[str, str] = field(repr=False)
    """Path in the copy → what names the file, for messages."""

    @functools.cached_property
    def hash(self) -> str:
        return robot_hash(self.main, self.contents)

    def outside(self, job_folder: str | None = None) -> str | None:
        """Return which file needs ``allow_outside``, and why, or None if all lie below the folder of
        the main MJCF or below ``job_folder``.
        """
        folders = [self.xml.parent]
        if job_folder is not None:
            folders.append(Path(job_folder))
        for name, source in self.sources.items():
            if name != self.main and (why := why_outside(self.named[name], source, folders)):
                return why
        return None

    def write(self, folder: Path) -> Path:
        """Write all files below ``folder``. Return the path of the main MJCF there."""
        for name, content in self.contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
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
    contents = collector.contents()
    origin = os.path.commonpath([target.parent for target in contents])
    names = {target: target.relative_to(origin).as_posix() for target in contents}
    if names[collector.main].encode(errors="ignore").decode() != names[collector.main]:
        raise BundleError(
            f"{xml}: MuJoCo reads no name that is not UTF-8; rename the file or folder"
        )
    return Bundle(
        main=names[collector.main],
        xml=collector.main,
        contents={names[target]: content for target, content in contents.items()},
        sources={names[target]: source for target, source in collector.sources.items()},
        named={names[target]: named for target, named in collector.named.items()},
    )
