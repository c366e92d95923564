"""Free disk space, for which launches wait."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.machine.topology import MIB


def free_mib(path: Path) -> int | None:
    """MiB that may be written where ``path`` is, or will be; None where that is not known."""
    for folder in (path, *path.parents):
        try:
            file_system = os.statvfs(folder)
        except FileNotFoundError:
            continue
        except OSError:  # the file system is away
            return None
        if not file_system.f_blocks:  # a file system that counts nothing
            return None
        return file_system.f_bavail * file_system.f_frsize // MIB
    return None


def shortage(path: Path, free_mib: int, asked_mib: int) -> str:
    """A clause that says what is missing, and a sentence on what to do, without its full stop."""
    free = f"{free_mib:,} MiB are free on the file system of {path}"
    advice = "Free some space, or lower that key (0: no limit)"
    return f"{free}, and resources.min_free_disk asks for {asked_mib:,} MiB. {advice}"
