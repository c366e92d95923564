"""The text of a job file that is written for its user: values, comments, and the file itself, which
replaces no other.

:func:`check_target` comes first, so that nobody waits for work that cannot be kept; :func:`write`
comes last.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import absolute
from orchestrator.core.text import plain
from orchestrator.jobfile import Experiment, from_mapping

LONGEST_COMMENT = 480
"""Characters to which a comment is shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that is not in the job file, or not as it was asked for."""

    what: str
    reason: str


def comment(text: str) -> str:
    """Return ``text`` as a comment on one line, without characters that TOML refuses."""
    line = plain(" ".join(text.split()))
    return f"# {line if len(line) <= LONGEST_COMMENT else line[:LONGEST_COMMENT] + '…'}"


def aligned_lines(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of TOML with their comments aligned."""
    width = max((len(code) for code, remark in lines if remark), default=0)
    return [f"{code:<{width}}  {comment(remark)}" if remark else code for code, remark in lines]


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that exists.

    :param force: whether a job file may be replaced.
    :raises UsageError: with what to do.
    """
    if path.suffix != ".toml":
        raise UsageError(f"{path}: expected a name that ends in .toml; set it with -o")
    if not os.access(absolute(path).parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: its folder cannot be written to; choose another file with -o")
    if os.path.lexists(path) and not (force and path.is_file()):
        raise UsageError(
            f"{path} exists and was not changed; --force replaces a file, -o FILE.toml writes another"
        )


def write(path: Path, text: str, *, force: bool) -> Experiment:
    """Write a job file whole, after it was read as ``run`` will read it; returns what it declares.

    :raises SpecError: it is no valid job file; nothing is written.
    :raises UsageError: as :func:`check_target`, or where the folder refuses the file.
    :raises DiskFullError: nothing is written.
    """
    experiment = from_mapping(tomllib.loads(text), source=str(path), base=path.parent)
    check_target(path, force=force)
    try:
        with disk_full_explained(path, "run the same command again"):
            write_whole(path, text)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror or error}; choose another file with -o"
        ) from None
    return experiment
