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
    path: str = ""
    """Of the folder that the pilots serve, when the file was written; empty: not known."""
    inode: int = 0
    """Likewise; it stays when the run directory is moved, and is another one in a copy."""

    def is_of(self, folder: Path) -> bool:
        """Whether its pilots serve ``folder``, and not the one of which that is a copy."""
        try:
            inode = folder.stat().st_ino
        except OSError:
            return True
        return not self.path or self.path == str(folder.resolve()) or self.inode == inode


def read_session(folder: Path) -> Session | None:
    """None where there is none, or while the file cannot be read."""
    return read_record(Session, folder / "session.json")


def read_own_session(folder: Path) -> Session | None:
    """As :func:`read_session`; None also where ``folder`` was copied: the pilots of the original are
    none of its own.
    """
    session = read_session(folder)
    return session if session is not None and session.is_of(folder) else None


def session_owner(folder: Path) -> int:
    """The uid of the user whose supervisor has written the file, and submitted the pilots.

    :raises OSError: there is no file, or it cannot be looked at.
    """
    return (folder / "session.json").stat().st_uid


def write_session(folder: Path, session: Session) -> None:
    """Write the session whose pilots serve ``folder``. :raises OSError: it cannot be written."""
    here = dataclasses.replace(session, path=str(folder.resolve()), inode=folder.stat().st_ino)
    write_whole(folder / "session.json", json.dumps(dataclasses.asdict(here)))
