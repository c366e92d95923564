"""Names of pilots, and of the files by which a pilot and its supervisor speak to each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotName:
    """As text ``12_3.1763820000``."""

    task: str
    """Of Slurm's array, as ``squeue`` names it."""
    began: int
    """When it began, in seconds since 1970, as Slurm may start a task again."""

    def __str__(self) -> str:
        return f"{self.task}.{self.began}"


def parsed_name(text: str) -> PilotName:
    task, _, began = text.partition(".")
    return PilotName(task=task, began=int(began) if began.isdecimal() else 0)


def events_of(session: Path, pilot: str) -> Path:
    """Mailbox of what the pilot reports. :param session: the folder of the session that it
    serves.
    """
    return session / f"{pilot}.events"


def orders_of(session: Path, pilot: str) -> Path:
    """Mailbox of what the supervisor orders. :param session: as for :func:`events_of`."""
    return session / f"{pilot}.orders"


def joined_pilots(session: Path) -> set[str]:
    """Names of the pilots that have reported. :param session: as for :func:`events_of`."""
    marker = events_of(session, "").name
    return {path.name.partition(f"{marker}.")[0] for path in session.glob(f"*{marker}.*")}
