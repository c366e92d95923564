"""``session.json``: which supervisor pilots serve, as both sides read it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.record_file import read_record

FOLDER = "slurm"
"""In a run directory: messages between the supervisor and its pilots, their script and their logs."""
HAND_BACK_S = 60.0
"""Time that attempts have to save a checkpoint and exit when another supervisor calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The supervisor that pilots serve, as in the file ``session.json``."""

    session: str
    """Also the name of the folder with its messages."""
    batch_jobs: str = ""
    """Their name, which stays while they serve one supervisor after the other."""
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the session was begun, as in the file ``place.json``; pilots do not read it."""

    path: str
    """Of the folder with the file."""
    inode: int
    """Of this folder: it stays when the run directory is moved, and is another one in a copy."""

    @classmethod
    def of(cls, folder: Path) -> Place:
        """:raises OSError: it cannot be looked at."""
        return cls(path=str(folder.resolve()), inode=folder.stat().st_ino)


def read_session(folder: Path) -> Session | None:
    """None where there is none, or while the file cannot be read."""
    return read_record(Session, folder / "session.json")


def read_own_session(folder: Path) -> Session | None:
    """As :func:`read_session`; None also where ``folder`` was copied: the pilots of the original are
    none of its own.
    """
    session = read_session(folder)
    return None if session is None or _is_copy(folder) else session


def _is_copy(folder: Path) -> bool:
    """Whether the session in ``folder`` was begun in another one."""
    begun = read_record(Place, folder / "place.json")
    if begun is None:
        return False
    try:
        here = Place.of(folder)
    except OSError:  # it has been removed meanwhile
        return False
    return here.path != begun.path and here.inode != begun.inode


def session_owner(folder: Path) -> int:
    """The uid of the user whose supervisor has written the file, and submitted the pilots.

    :raises OSError: there is no file, or it cannot be looked at.
    """
    return (folder / "session.json").stat().st_uid


def write_session(folder: Path, session: Session) -> None:
    """Write the session whose pilots serve ``folder``. :raises OSError: it cannot be written."""
    here = Place.of(folder)
    # First: a session that is there is one whose place is known.
    if read_record(Place, folder / "place.json") != here:
        write_whole(folder / "place.json", json.dumps(dataclasses.asdict(here)))
    write_whole(folder / "session.json", json.dumps(dataclasses.asdict(session)))
