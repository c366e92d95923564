"""Environment variables that the supervisor sets for workers, and those that decide thread
counts.
"""

from __future__ import annotations

CHANNEL_VARIABLE = "ORCHESTRATOR_CHANNEL"
"""Number of the inherited socket; its end-of-file means that the supervisor is gone."""
GO = b"\n"
"""What the supervisor sends through that socket once affinity and niceness of the worker are set.
Until then the worker waits, on its first lines."""

TOKEN_VARIABLE = "ORCHESTRATOR_TOKEN"  # noqa: S105 - the name of a variable, no secret
"""``<supervisor token>/<job_id>/<number>``, with several ranks followed by ``/<rank>``; marks every
descendant of an attempt."""

NICE_VARIABLE = "ORCHESTRATOR_NICE"
"""The niceness that the worker's session is given: of its job, or of the supervisor where that is
more; unset: 0."""

START_VARIABLE = "ORCHESTRATOR_START"
"""How the worker was started: :data:`FORKED`, or why it was exec'ed although it was to be forked;
unset: exec'ed."""
FORKED = "fork"

CPU_LOCKS_VARIABLE = "ORCHESTRATOR_CPU_LOCKS"
"""Folder in which experiments of all users lock CPUs, in place of the fixed one: for tests."""

FEATURES_VARIABLE = "ORCHESTRATOR_FEATURES"
"""Names of the installed features of others to load, with commas between them; unset: all of them,
empty: none."""
GPU_SHARE_VARIABLE = "ORCHESTRATOR_GPU_SHARE"
"""The share of its GPU that the worker may use, such as 0.5; set only for a job that shares one."""

SEARCH_PATH_VARIABLE = "ORCHESTRATOR_SEARCH_PATH"
"""Folder to use instead of :attr:`WorkerSpec.search_path`, on machines where that folder is missing
or has changed."""

RANK_VARIABLE = "RANK"
WORLD_SIZE_VARIABLE = "WORLD_SIZE"
LOCAL_RANK_VARIABLE = "LOCAL_RANK"

RANKS_SECRET_VARIABLE = "ORCHESTRATOR_RANKS_SECRET"  # noqa: S105 - the name of a variable, no secret
"""Secret by which the ranks of an attempt authenticate each other; never on a command line or in a
file."""

DISTRIBUTED_VARIABLES = (
    RANK_VARIABLE,
    WORLD_SIZE_VARIABLE,
    LOCAL_RANK_VARIABLE,
    RANKS_SECRET_VARIABLE,
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables that make a process one of several ranks; a worker does not inherit those of its
supervisor."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables by which a library binds its threads to CPUs of its own choice, whatever CPUs the job
has."""


def worker_thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that give a process ``threads`` threads, which wait without
    spinning.
    """
    return {
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
    }
