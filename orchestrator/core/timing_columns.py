"""The columns of ``timings.csv``: the worker writes them, everybody else reads them by these
names.
"""

from __future__ import annotations

from typing import NamedTuple


class Iteration(NamedTuple):
    """One row of ``timings.csv``, its fields in the order of the columns. None: not measured on
    that system, or with that learner.
    """

    iteration: float | None
    env_steps: float
    """Total of the job at the end of the iteration."""
    wall_s: float
    rollout_s: float | None
    env_s: float | None
    policy_s: float | None
    gae_s: float | None
    train_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    cpu_s: float | None
    run_delay_s: float | None
    """Time in which the main thread was runnable but waited for a CPU."""
    voluntary_switches: float | None
    involuntary_switches: float | None
    throttled_s: float | None
    """Time for which the cgroup's CPU quota kept the process off the CPU."""
    rss_mib: float | None
    n_threads: float | None
    n_cpus: float | None
    """CPUs that the process was allowed to run on at the end of the iteration."""
    clock_s: float | None
    """The machine's monotonic clock at the end of the iteration, the same for all processes of the
    machine."""
    allreduce_s: float | None
    """Time in collectives with other ranks, waiting included; it is part of the phases as well."""


COLUMNS = Iteration._fields
PHASES = ("env_s", "policy_s", "gae_s", "backward_s", "optimizer_s")
"""Disjoint parts of ``wall_s``; what they leave of it is the rest (losses, buffers, logging)."""
AT_END = ("iteration", "env_steps", "rss_mib", "n_threads", "n_cpus", "clock_s")
"""Columns with a value at the end of the iteration."""
SUMMABLE = tuple(name for name in COLUMNS if name not in AT_END)
"""Columns with an amount over the iteration."""
