"""Jobs that have ended, whose pictures are made without a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor_helpers import make_machine

from orchestrator.core.job import State, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.features.pictures.ended_jobs import EndedJobs
from orchestrator.machine.slots import SlotPool
from orchestrator.machine.topology import Cpu


class Reported:
    """What is reported."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Mapping[str, Any]]] = []

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self.events.append((kind, message, facts))

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.events]

    def messages(self) -> str:
        return "\n".join(message for _, message, _ in self.events)


def ended_jobs(
    paths: RunPaths,
    names: Sequence[str],
    states: Mapping[str, State] | None = None,
    shown: Sequence[str] | None = None,
) -> tuple[EndedJobs, Reported]:
    """Jobs that have succeeded, unless ``states`` says otherwise, on one CPU; and what is told of
    them.
    """
    reporter = Reported()
    [cpu, *_] = os.sched_getaffinity(0)
    machine = dataclasses.replace(
        make_machine(1), cpus=(Cpu(index=cpu, core=0, package=0, numa_node=0),)
    )
    ended = EndedJobs(
        paths=paths,
        states=states or {name: Succeeded() for name in names},
        shown=shown,
        slots=SlotPool(machine),
        report=reporter.event,
    )
    return ended, reporter
