"""Environment variables by which supervisor and worker find each other, and those that set thread counts."""

from __future__ import annotations

CHANNEL_VARIABLE = "ORCHESTRATOR_CHANNEL"
"""Environment variable: number of the inherited socket. Its end-of-file means the supervisor is gone."""


TOKEN_VARIABLE = "ORCHESTRATOR_TOKEN"  # noqa: S105 - the name of a variable, no secret
"""Environment variable: ``<supervisor token>/<job_id>/<number>``, with several ranks ``/<rank>`` behind it; marks
every descendant of an attempt."""


SEARCH_PATH_VARIABLE = "ORCHESTRATOR_SEARCH_PATH"
"""Environment variable: folder that takes the place of :attr:`WorkerSpec.search_path`, on machines that do not have
that one as it was when the jobs began."""


RANK_VARIABLE, WORLD_SIZE_VARIABLE, LOCAL_RANK_VARIABLE = "RANK", "WORLD_SIZE", "LOCAL_RANK"
"""Environment variables of a rank, under the names that PyTorch's launchers use."""


RANKS_SECRET_VARIABLE = "ORCHESTRATOR_RANKS_SECRET"  # noqa: S105 - the name of a variable, no secret
"""Environment variable: by what the ranks of an attempt know that it is one of them who speaks. Made by whoever starts
them, the same for all; never on a command line, never in a file."""


DISTRIBUTED_VARIABLES = (
    *(RANK_VARIABLE, WORLD_SIZE_VARIABLE, LOCAL_RANK_VARIABLE, RANKS_SECRET_VARIABLE),
    *("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
"""What tells a process that it is one of several. A supervisor's own are not for its workers."""


THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def worker_thread_settings(threads: int) -> dict[str, str]:
    """The environment variables that give a process ``threads`` threads, waiting without spinning."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
