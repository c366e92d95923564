"""How a run was started, beside its job file: so `resume --all` starts it again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.decoding import field_values, from_values
from orchestrator.core.paths import RunPaths
from orchestrator.machine import provenance
from orchestrator.machine.topology import Machine, online_cpus

GRACE_S = 30.0
"""Time that workers have to save a checkpoint and exit, unless --grace says otherwise."""
PROGRAM = (sys.executable, "-m", "orchestrator")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartConditions:
    """What a user gave a run on the command line, and by `nice` and `taskset` around it."""

    max_parallel: int | Literal["auto", "idle"] | None = None
    """None: as in the job file."""
    grace_s: float = GRACE_S
    until: float | None = None
    """In seconds since the epoch."""
    niceness: int = 0
    cpus: tuple[int, ...] | None = None
    """The CPUs that it may use; None: all that are online."""

    @classmethod
    def of(
        cls,
        max_parallel: int | Literal["auto", "idle"] | None,
        grace_s: float,
        until: float | None,
        machine: Machine,
    ) -> StartConditions:
        """Return those of the run of this process, with what its command said."""
        usable = tuple(sorted(cpu.index for cpu in machine.cpus))
        return cls(
            max_parallel=max_parallel,
            grace_s=grace_s,
            until=until,
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            cpus=usable if len(usable) < len(online_cpus()) else None,
        )

    @classmethod
    def recorded(cls, paths: RunPaths) -> StartConditions:
        """Those of the run before; what an unmodified call has where none are recorded."""
        try:
            return from_values(cls, provenance.started_with(paths))
        except ValueError:  # damaged
            return cls()

    def facts(self) -> Mapping[str, Any]:
        """As JSON types, for :func:`provenance.record`."""
        return field_values(self)

    @property
    def is_over(self) -> bool:
        """Whether the time by which the run was to end is too near for another one."""
        return self.until is not None and self.until - time.time() <= self.grace_s

    def usable_cpus(self) -> set[int] | None:
        """The CPUs to which the same run is confined now; None: those of this process."""
        return None if self.cpus is None else set(self.cpus) & os.sched_getaffinity(0)

    @property
    def has_lost_its_cpus(self) -> bool:
        """Whether none of the CPUs to which it was confined can be used now."""
        return self.usable_cpus() == set()

    def command(self, run_dir: Path) -> list[str]:
        """The command line of the same run in the background."""
        more = max(0, self.niceness - os.getpriority(os.PRIO_PROCESS, 0))
        command = ["nice", "-n", str(more)] if more else []
        command += [*PROGRAM, "run", str(run_dir), "--detach"]
        command += ["--grace", str(self.grace_s)]
        if self.max_parallel is not None:
            command += ["--max-parallel", str(self.max_parallel)]
        if self.until is not None:
            command += ["--until", f"{self.until - time.time():.3f}s"]
        return command
