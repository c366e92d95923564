"""Checks jobs with several ranks: what the ranks divide among them must be divisible by their
number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from orchestrator.core.text import joined
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.validation import Report

RANKED = ("ppo", "sac", "tqc")
"""Algorithms that can be trained with several ranks. Of CrossQ, the running statistics would differ
between ranks."""


def check_ranks(merged: Mapping[str, Any], bad: set[str], report: Report) -> None:
    """Check a job's merged settings, except those that depend on keys in ``bad``, which are invalid
    already.
    """
    if bad & {"resources", "algo"}:
        return
    ranks = merged["resources"]["ranks"]
    algo = merged["algo"]
    if ranks == 1:
        return
    if algo not in RANKED:
        text = f"resources.ranks = {ranks}, but only {joined(RANKED)} can have several ranks, and algo is {algo}"
        report(["resources.ranks", "algo"], text)
        return
    gpus = merged["resources"]["gpus"]
    n_envs = merged["n_envs"]
    if 0 < gpus < 1:
        text = (
            f"resources.gpus = {gpus:g} is a share of one GPU, and each of {ranks} ranks needs a GPU of its own; "
            "set resources.gpus = 1, or resources.ranks = 1"
        )
        report(["resources.gpus", "resources.ranks"], text)
    if "n_envs" not in bad and n_envs % ranks:
        report(["n_envs", "resources.ranks"], uneven(f"n_envs = {n_envs}", n_envs, ranks))
    if algo not in bad:
        values = DEFAULTS[algo] | merged[algo]
        # The minibatches of PPO must also divide its rollout.
        rollout = values["n_steps"] * n_envs if algo == "ppo" and "n_envs" not in bad else 0
        for name in ("batch_size", "buffer_size"):
            value = values.get(name, 0)
            text = ""
            if value % ranks:
                default = "" if name in merged[algo] else " (Stable-Baselines3's default)"
                text = uneven(f"{name} = {value}{default}", value, ranks, rollout)
            elif (
                name == "batch_size"
                and algo == "ppo"
                and value == ranks
                and values["normalize_advantage"]
            ):
                text = (
                    f"batch_size = {value} leaves each of {ranks} ranks one sample per minibatch, whose advantage "
                    f"cannot be normalised; set batch_size to {2 * ranks} or more, or ppo.normalize_advantage = false"
                )
            if text:
                report([f"{algo}.{name}", "resources.ranks"], text)
    if "distributed" not in bad and merged["distributed"]["backend"] == "nccl" and not gpus:
        text = 'nccl is for GPUs, and resources.gpus is 0; set resources.gpus = 1 (for each rank), or backend = "auto"'
        report(["distributed.backend", "resources.gpus"], text)


def uneven(what: str, value: int, ranks: int, whole: int = 0) -> str:
    """``"n_envs = 10 is not divisible by resources.ranks = 4; 8 or 12 are"``.

    :param whole: a number that suggested values should divide, where there are any near ``value``;
        0: no such number.
    """
    below = value // ranks * ranks
    nearest = (near(value, ranks, whole) if whole else []) or [
        size for size in (below, below + ranks) if size
    ]
    good = " or ".join(map(str, nearest)) + (" are" if len(nearest) > 1 else " is")
    return f"{what} is not divisible by resources.ranks = {ranks}; {good}"


@functools.lru_cache(maxsize=1024)
def near(value: int, unit: int, whole: int) -> list[int]:
    """The multiples of ``unit`` above 1 that are nearest below and above ``value`` and divide
    ``whole``, if any.
    """
    start, reach = value // unit * unit, min(3 * value, 10_000) // unit * unit
    sizes = [
        size
        for size in range(start - reach, start + reach + 1, unit)
        if size > 1 and whole % size == 0
    ]
    return [size for size in sizes if size < value][-1:] + [size for size in sizes if size > value][
        :1
    ]
