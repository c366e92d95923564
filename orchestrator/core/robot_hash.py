"""The content hash of a robot, by which the copy in a job directory is compared with the robot that
was examined.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.paths import JobPaths

CHUNK_BYTES = 1 << 20


def robot_hash(main: str, files: Mapping[str, bytes | Path]) -> str:
    """SHA-256 (hexadecimal) over all contents and the other files' names relative to the main file.

    The name of the main file does not count: a copy under another name has the same hash.

    :param main: the main MJCF, one of the relative paths in ``files``.
    :param files: relative path → content, or the file that holds it.
    :raises OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    here = str(Path("/", main).parent)
    named = {os.path.relpath(f"/{name}", here): files[name] for name in files if name != main}
    for name, content in [("", files[main]), *sorted(named.items(), key=itemgetter(0))]:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        digest.update(b"%d %b %d\n" % (len(os.fsencode(name)), os.fsencode(name), size))
        if isinstance(content, bytes):
            digest.update(content)
            continue
        with content.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def hash_of_copy(folder: Path, main: str) -> str | None:
    """:func:`robot_hash` of all files in ``folder``; None if the main MJCF is not among them."""
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    return robot_hash(main, files) if main in files else None


def alteration(job: JobPaths, xml: str | None, expected: str | None) -> str | None:
    """A clause saying how the robot in a job directory differs from the one that was examined; None
    if it does not.

    :param xml: of the job's specification.
    :param expected: hash of the robot that was examined; None without a robot.
    :raises OSError: files cannot be read.
    """
    if xml is None or expected is None:
        return None
    found = hash_of_copy(job.robot, main_file(xml))
    if found == expected:
        return None
    state = "its main file is missing"
    if found is not None:
        state = f"SHA-256 {found[:12]}…, expected {expected[:12]}…"
    return f"{job.root / xml} and its files differ from the robot that was examined ({state})"


def altered_since_training(job: JobPaths, xml: str | None) -> str | None:
    """A sentence for who uses the policy, if the job directory's robot is not the one that its own
    record names.

    :raises OSError, ValueError: robot or record cannot be read.
    """
    altered = alteration(job, xml, read_regular(job.robot_hash).decode() or None)
    if altered is None:
        return None
    return f"{altered}, with which the policy was trained"


def main_file(xml: str) -> str:
    """``"robot/hopper.xml"`` → ``"hopper.xml"``, relative to the folder of the copy."""
    return xml.partition("/")[2]
