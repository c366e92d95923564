"""A driver most of whose jobs wait: what memory it takes. For :mod:`benchmarks.scale` and a test."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.simulated import DAY_S, make_jobs, supervisor_over
from benchmarks.simulation import resident_mib
from orchestrator.core.paths import RunPaths
from orchestrator.executors.fake import NEVER, Behaviour, FakeExecutor
from orchestrator.executors.ray.cluster_slots import ClusterSlots
from orchestrator.experiment import session  # noqa: F401 - everything that a driver loads
from orchestrator.supervisor.events import SilentReporter, View

LOOKED_AFTER_S = 5.0


class _StopsAfterAWhile(SilentReporter):
    def __init__(self) -> None:
        self.mib = 0.0
        self.stop: Callable[[str], None] = lambda _: None

    def tick(self, view: Callable[[], View]) -> None:
        if view().elapsed_s >= LOOKED_AFTER_S:
            self.mib = self.mib or resident_mib()
            self.stop("looked")


def supervise(root: Path, count: int) -> float:
    """Resident MiB of this process while all of ``count`` jobs but those that four cores hold wait."""
    jobs = make_jobs(count, random.Random(0), max_retries=3, stall_timeout_s=DAY_S)
    fake = FakeExecutor(behave=lambda _: Behaviour(after_s=NEVER))
    pool = ClusterSlots()
    pool.add("only", cores=4, gpus=0, memory_mib=1 << 20)
    reporter = _StopsAfterAWhile()
    supervisor = supervisor_over(RunPaths(root), jobs, executor=fake, pool=pool, reporter=reporter)
    reporter.stop = supervisor.request_stop
    supervisor.run()
    supervisor.ledger.close()
    return reporter.mib
