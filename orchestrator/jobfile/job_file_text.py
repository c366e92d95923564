"""The text of a job file that is written for its user: values, comments, and the file itself, which
replaces no other.

:func:`check_target` comes first, so that nobody waits for work that cannot be kept; :func:`write`
comes last.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.files.atomic_files import refuse_special_file, write_whole
from orchestrator.core.paths import absolute
from orchestrator.core.text import plain
from orchestrator.jobfile import Experiment, from_mapping

LONGEST_COMMENT = 480
"""Characters to which a comment is shortened."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that is not in the job file, or not as it was asked for."""

    what: str
    reason: str


def toml(value: Any) -> str:
    """A bool, number, text, list or table as TOML; tables are inline."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:_}"
        case float():
            return repr(value)
        case str():
            # Every escape of JSON is one of TOML, which allows DEL only as one.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return (
                "{ "
                + ", ".join(f"{_key(name)} = {toml(part)}" for name, part in value.items())
                + " }"
            )
    return f"[{', '.join(map(toml, value))}]"


def comment(text: str) -> str:
    """``text`` on one line, without characters that TOML refuses in a comment."""
    line = plain(" ".join(text.split()))
    return f"# {line if len(line) <= LONGEST_COMMENT else line[:LONGEST_COMMENT] + '…'}"


def aligned_lines(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of TOML, each with its comment (or none) in the same column."""
    width = max((len(code) for code, remark in lines if remark), default=0)
    return [f"{code:<{width}}  {comment(remark)}" if remark else code for code, remark in lines]


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else toml(name)


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a file that cannot be written, or that exists.

    :param force: whether a job file may be replaced.
    :raises UsageError: with what to do.
    """
    folder = absolute(path).parent
    if path.suffix != ".toml":
        raise UsageError(
            f"{path}: expected the name of a job file, which ends in .toml; set it with -o"
        )
    if not folder.is_dir():
        raise UsageError(
            f"{path}: the folder {folder} does not exist; create it, or choose another file with -o"
        )
    if os.path.lexists(path):
        if not force:
            raise UsageError(
                f"{path} exists and was not changed; --force replaces it, -o FILE.toml writes another"
            )
        try:
            refuse_special_file(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; choose another with -o") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(
            f"{path}: the folder {folder} is not writable; choose another file with -o"
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
