"""The room of the pilots, including those that Slurm has yet to start."""

from __future__ import annotations

import math
import time

from orchestrator.executors.cluster_slots import ClusterSlots
from orchestrator.executors.executor import amounts
from orchestrator.machine.slots import Slot


class PilotSlots(ClusterSlots):
    """See :class:`.ClusterSlots`. An attempt runs on one pilot: two pilots do not know each other's
    addresses.
    """

    def __init__(self, max_parallel: int | None = None) -> None:
        super().__init__(max_parallel, is_spread=False)
        self.expected_cores = 0
        """Of pilots that wait or are yet to be submitted: with these, jobs are offered before there
        is room."""
        self.unfit = ""
        """What the job that was refused last asks for, if none of the present pilots could ever
        have room for it."""
        self._refused_at = -math.inf
        """When a job was refused for want of room, rather than because ``max_parallel`` jobs have
        a slot."""

    @property
    def jobs_at_once(self) -> int:
        return min(self._max_parallel, self._cores + self.expected_cores)

    def acquire(
        self, cores: int, gpus: float = 0, *, memory_mib: int = 0, ranks: int = 1, job_id: str = ""
    ) -> Slot | None:
        slot = super().acquire(cores, gpus, memory_mib=memory_mib, ranks=ranks)
        if slot is None and len(self._held) < self._max_parallel:
            self._refused_at = time.monotonic()
            fits = self.fits_ever(cores, gpus, memory_mib=memory_mib, ranks=ranks)
            self.unfit = "" if fits else amounts(cores, gpus, memory_mib)
        return slot

    def has_refused(self, within_s: float) -> bool:
        """Whether a job was refused lately for want of room, so that more of it is needed."""
        return time.monotonic() - self._refused_at < within_s
