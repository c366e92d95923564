"""Checks of jobs with several ranks: what the ranks divide among them must be divisible by their
number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from orchestrator.core.text import joined
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.merged_job import MergedJob

RANKED = ("ppo", "sac")
"""Algorithms that can be trained with several ranks."""


def check_ranks(job: MergedJob) -> None:
    """Check a job's merged settings, except those that depend on keys that are invalid already."""
    if not job.are_valid("resources", "algo"):
        return
    ranks = job.settings["resources"]["ranks"]
    algo = job.settings["algo"]
    if ranks == 1:
        return
    if algo not in RANKED:
        job.report(
            ["resources.ranks", "algo"],
            f"resources.ranks = {ranks}, but only {joined(RANKED)} can have several ranks, "
            f"and algo is {algo}",
        )
        return
    _check_gpus(job, ranks)
    n_envs = job.settings["n_envs"]
    if job.are_valid("n_envs") and n_envs % ranks:
        job.report(["n_envs", "resources.ranks"], uneven(f"n_envs = {n_envs}", n_envs, ranks))
    if job.are_valid(algo):
        _check_sizes(job, algo, ranks)


def _check_gpus(job: MergedJob, ranks: int) -> None:
    gpus = job.settings["resources"]["gpus"]
    if 0 < gpus < 1:
        job.report(
            ["resources.gpus", "resources.ranks"],
            f"resources.gpus = {gpus:g} is a share of one GPU, and each of {ranks} ranks needs "
            "a GPU of its own; set resources.gpus = 1, or resources.ranks = 1",
        )
    is_nccl = job.are_valid("distributed") and job.settings["distributed"]["backend"] == "nccl"
    if is_nccl and not gpus:
        job.report(
            ["distributed.backend", "resources.gpus"],
            "nccl is for GPUs, and resources.gpus is 0; "
            'set resources.gpus = 1 (for each rank), or backend = "auto"',
        )


def _check_sizes(job: MergedJob, algo: str, ranks: int) -> None:
    """Check what the ranks divide among them: minibatches and replay buffers."""
    values = DEFAULTS[algo] | job.settings[algo]
    # The minibatches of PPO must also divide its rollout.
    has_rollout = algo == "ppo" and job.are_valid("n_envs")
    rollout = values["n_steps"] * job.settings["n_envs"] if has_rollout else 0
    for name in ("batch_size", "buffer_size"):
        value = values.get(name, 0)
        keys = [f"{algo}.{name}", "resources.ranks"]
        if value % ranks:
            default = "" if name in job.settings[algo] else " (Stable-Baselines3's default)"
            job.report(keys, uneven(f"{name} = {value}{default}", value, ranks, rollout))
        elif name == "batch_size" and _leaves_one_sample(algo, values, ranks):
            job.report(
                keys,
                f"batch_size = {value} leaves each of {ranks} ranks one sample per minibatch, "
                f"whose advantage cannot be normalised; set batch_size to {2 * ranks} or more, "
                "or ppo.normalize_advantage = false",
            )


def _leaves_one_sample(algo: str, values: Mapping[str, Any], ranks: int) -> bool:
    """Whether a rank has one sample in a minibatch of PPO that normalises advantages."""
    return algo == "ppo" and values["batch_size"] == ranks and values["normalize_advantage"]


def uneven(what: str, value: int, ranks: int, whole: int = 0) -> str:
    """``"n_envs = 10 is not divisible by resources.ranks = 4; 8 or 12 are"``.

    :param whole: a number that suggested values should divide, where there are any near ``value``;
        0: no such number.
    """
    nearest = near(value, ranks, whole) if whole else []
    if not nearest:
        below = value // ranks * ranks
        nearest = [size for size in (below, below + ranks) if size]
    verb = "are" if len(nearest) > 1 else "is"
    good = " or ".join(map(str, nearest))
    return f"{what} is not divisible by resources.ranks = {ranks}; {good} {verb}"


@functools.lru_cache(maxsize=1024)
def near(value: int, unit: int, whole: int) -> list[int]:
    """The multiples of ``unit`` above 1 that are nearest below and above ``value`` and divide
    ``whole``, if any.
    """
    start = value // unit * unit
    reach = min(3 * value, 10_000) // unit * unit
    sizes = [
        size
        for size in range(start - reach, start + reach + 1, unit)
        if size > 1 and whole % size == 0
    ]
    below = [size for size in sizes if size < value]
    above = [size for size in sizes if size > value]
    return [*below[-1:], *above[:1]]
