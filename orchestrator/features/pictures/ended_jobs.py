"""The jobs of a run when all of them have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.job import State
from orchestrator.core.paths import RunPaths
from orchestrator.machine.slots import SlotPool

Report = Callable[..., None]
"""``report(kind, message, **facts)`` tells people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJobs:
    """See the module."""

    paths: RunPaths
    states: Mapping[str, State]
    """In the order of the job file."""
    shown: Sequence[str] | None
    """Ids of those that pages show by themselves; None: all of :attr:`states`."""
    slots: SlotPool
    """The CPUs of this machine that the run may use. They are free."""
    report: Report
