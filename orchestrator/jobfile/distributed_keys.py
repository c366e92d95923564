"""Checks of a job that several processes train together: what they share out among them must come out even."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.core.text import joined
from orchestrator.jobfile.hyperparameters import ALGORITHMS

RANKED = ("ppo", "sac")
"""Algorithms that several processes can train together."""
SHARED_OUT = ("batch_size", "buffer_size")
"""Hyperparameters of which every rank has an equal part."""


def check_ranks(merged: Mapping[str, Any], bad: set[str], report: Callable[[Sequence[str], str], None]) -> None:
    """Check a job's merged settings; keys in ``bad`` are wrong already, and what hangs on them is not judged.

    :param report: takes the dotted keys that may be at fault, and the problem in words.
    """
    if bad & {"resources", "algo"}:
        return
    ranks, algo = merged["resources"]["ranks"], merged["algo"]
    if ranks == 1:
        return
    if algo not in RANKED:
        text = f"resources.ranks = {ranks}, but {algo} trains in one process; {joined(RANKED)} can in several"
        report(["resources.ranks", "algo"], text)
        return
    n_envs = merged["n_envs"]
    if "n_envs" not in bad and n_envs % ranks:
        report(["n_envs", "resources.ranks"], uneven(f"n_envs = {n_envs}", n_envs, ranks))
    if algo not in bad:
        values = ALGORITHMS[algo]().model_dump() | merged[algo]
        # PPO's minibatches divide its rollout besides.
        rollout = values["n_steps"] * n_envs if algo == "ppo" and "n_envs" not in bad else 0
        for name in SHARED_OUT:
            value, text = values.get(name, 0), ""
            if value % ranks:
                default = "" if name in merged[algo] else " (Stable-Baselines3's default)"
                text = uneven(f"{name} = {value}{default}", value, ranks, rollout)
            elif name == "batch_size" and algo == "ppo" and value == ranks and values["normalize_advantage"]:
                text = (
                    f"batch_size = {value} leaves each of {ranks} ranks one sample a minibatch, and Stable-Baselines3 "
                    f"normalises no advantage by itself; {2 * ranks} or more, or ppo.normalize_advantage = false"
                )
            if text:
                report([f"{algo}.{name}", "resources.ranks"], text)
    if "distributed" not in bad and merged["distributed"]["backend"] == "nccl" and not merged["resources"]["gpus"]:
        text = 'nccl is for GPUs, and resources.gpus is 0; set resources.gpus = 1 (of each rank), or backend = "auto"'
        report(["distributed.backend", "resources.gpus"], text)


def uneven(what: str, value: int, ranks: int, whole: int = 0) -> str:
    """``"n_envs = 10 is not divisible by resources.ranks = 4; 8 or 12 are"``.

    :param whole: what good values divide, where any of about that size do; 0: they need not divide anything.
    """
    below = value // ranks * ranks
    reach = min(value, 10_000) // ranks * ranks
    fitting = [
        size for size in range(below - reach, below + reach + 1, ranks) if whole and size > 0 and whole % size == 0
    ]
    fitting = fitting or [size for size in (below, below + ranks) if size]
    nearest = [size for size in fitting if size < value][-1:] + [size for size in fitting if size > value][:1]
    good = " or ".join(map(str, nearest)) + (" are" if len(nearest) > 1 else " is")
    return f"{what} is not divisible by resources.ranks = {ranks}; {good}"
