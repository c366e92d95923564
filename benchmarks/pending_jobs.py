"""Memory of a driver with many pending jobs, for :mod:`benchmarks.scale` and a test."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.simulated_cluster import DAY_S, endless_supervisor, make_jobs
from benchmarks.simulated_experiment import resident_mib
from orchestrator.experiment import session  # noqa: F401 - everything that a driver loads
from orchestrator.supervisor.events import SilentReporter, View

MEASURED_AFTER_S = 5.0


class _StopsAfterAWhile(SilentReporter):
    def __init__(self) -> None:
        self.mib = 0.0
        self.stop: Callable[[str], None] = lambda _: None

    def tick(self, view: Callable[[], View]) -> None:
        if view().elapsed_s >= MEASURED_AFTER_S:
            self.mib = self.mib or resident_mib()
            self.stop("measured")


def supervise(root: Path, count: int) -> float:
    """Resident MiB of this process while ``count`` jobs are pending, except those that run on four
    cores."""
    jobs = make_jobs(count, random.Random(0), max_retries=3, stall_timeout_s=DAY_S)
    reporter = _StopsAfterAWhile()
    supervisor = endless_supervisor(root, jobs, nodes=1, cores=4, reporter=reporter)
    reporter.stop = supervisor.request_stop
    supervisor.run()
    supervisor.ledger.close()
    return reporter.mib
