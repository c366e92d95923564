"""Checks of jobs with several ranks: what the ranks divide among them must be divisible by their
number.
"""

from __future__ import annotations

from orchestrator.core.text import joined
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.merged_job import MergedJob

RANKED = ("ppo", "sac")
"""Algorithms that can be trained with several ranks."""


def check_ranks(job: MergedJob) -> None:
    """Check a job's merged settings; its resources and the table of its algorithm are valid."""
    resources = job.settings["resources"]
    ranks = resources["ranks"]
    algo = job.settings["algo"]
    if ranks == 1:
        return
    if algo not in RANKED:
        message = f"only {joined(RANKED)} can have several ranks, and algo is {algo}"
        job.report(["resources.ranks", "algo"], message)
        return
    if 0 < resources["gpus"] < 1:
        message = f"each of {ranks} ranks needs a GPU of its own; set resources.gpus = 1"
        job.report(["resources.gpus", "resources.ranks"], message)
    if job.settings["distributed"]["backend"] == "nccl" and not resources["gpus"]:
        message = 'nccl is for GPUs; set resources.gpus = 1 (for each rank), or backend = "auto"'
        job.report(["distributed.backend", "resources.gpus"], message)
    values = {"n_envs": job.settings["n_envs"], **DEFAULTS[algo], **job.settings[algo]}
    for name in ("n_envs", "batch_size", "buffer_size"):
        if values.get(name, 0) % ranks:
            key = name if name == "n_envs" else f"{algo}.{name}"
            job.report([key, "resources.ranks"], uneven(name, values[name], ranks))


def uneven(name: str, value: int, ranks: int) -> str:
    """Return the message for a value that ranks cannot divide."""
    near = max(ranks, value // ranks * ranks)
    return f"{name} = {value} is not divisible by resources.ranks = {ranks}; {near} is"
