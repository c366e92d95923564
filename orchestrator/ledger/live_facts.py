"""``live.json``: what the ledger does not hold of running attempts, and why none is launched; for
whoever looks on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from orchestrator.core.decoding import Message
from orchestrator.core.files.record_file import read_record
from orchestrator.core.messages import JsonLine
from orchestrator.core.paths import RunPaths

Phase: TypeAlias = Literal["starting", "training", "evaluating", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """A running job as its worker reported it last; shares as in
    :class:`~orchestrator.core.messages.Progress`.
    """

    phase: Phase
    cpu_share: float | None
    run_delay_share: float | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Of features (:func:`orchestrator.core.job_parts.columns`)."""
    competitors: tuple[str, ...] = ()
    """Who else uses its CPUs, or has used them, for people."""
    silent_s: float | None = None
    """For how long it has reported nothing."""
    has_return: bool = True
    """Whether it has reported a mean return: one that the ledger has may be of an earlier
    attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts(JsonLine):
    """The content of ``live.json``, which a supervisor writes about once a second and removes at
    its end.
    """

    holder: str
    """The supervisor that wrote it; one that was killed leaves its file behind."""
    waiting: Message | None = None
    """Why jobs that would have a slot are not launched; None: none waits for anything else."""
    waiting_from_mib: int | None = None
    """These are the jobs that ask for at least so much free disk space."""
    jobs: Mapping[str, LiveJob] = field(default_factory=dict)
    """By job id; those that have reported nothing yet are missing."""


def read(paths: RunPaths, holder: str) -> LiveFacts | None:
    """What the supervisor ``holder`` wrote last; None where there is nothing, or nothing that can
    be read.
    """
    facts = read_record(LiveFacts, paths.live)
    return None if facts is None or facts.holder != holder else facts


def remove(paths: RunPaths) -> None:
    """Remove the file at the end of a run. One that cannot be removed names its supervisor, so that
    nobody heeds it.
    """
    with contextlib.suppress(OSError):  # there is none, or the disk is read-only
        paths.live.unlink()
