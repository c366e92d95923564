"""Checks that involve several keys of a job."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.task_names import PRESETS
from orchestrator.core.worker_spec import fast_refused, unfit_for_fast
from orchestrator.jobfile.algorithm_keys import ONE_STEP, check_algorithm
from orchestrator.jobfile.distributed_keys import check_ranks
from orchestrator.jobfile.hyperparameters import Ppo
from orchestrator.jobfile.validation import Layer, Report
from orchestrator.jobfile.validation_errors import Problems

FAMILY = ("task", "env", "entry_point")
"""A job has one of these keys: the last layer that sets any decides."""

_PPO_DEFAULTS = Ppo().model_dump()
_SET_BY_JOB = {"seed": "seeds", "xml": "xml"}
"""Keyword arguments of an environment that the job sets, and the job's keys for them."""


def check_family(layer: Layer, problems: Problems) -> list[str]:
    """Check that a layer sets at most one of task, env and entry_point; returns the keys that are too many."""
    first, *others = [key for key in FAMILY if key in layer.values] or [""]
    for key in others:
        message = f"{key} and {first} exclude each other; keep the one that makes the environment"
        problems.add(layer.where(key), message)
    return others


def check_together(
    merged: Mapping[str, Any], layers: Sequence[Layer], where: str, bad: set[str], problems: Problems
) -> None:
    """Check a job's merged settings, except those that depend on keys in ``bad``, which are invalid already.

    A problem is reported where the value was written, so that a wrong default is one problem, not one per job.
    """

    def report(keys: Sequence[str], message: str) -> None:
        written = next((layer.where(key) for layer in reversed(layers) for key in keys if layer.has(key)), where)
        problems.add(written, message)

    if not bad & {*FAMILY, "xml", "env_kwargs", "task_options", "policy"}:
        _check_environment(merged, layers[-2:], report)
    if merged["model"] and "xml" not in merged and not bad & {"xml", "model"}:
        report(["model"], "changes a robot, but this job has none; set xml")
    algo = merged["algo"]
    if not bad & {"algo", algo, "n_envs", "policy_kwargs", *(("policy", "total_timesteps") if algo != "ppo" else ())}:
        if algo == "ppo":
            _check_ppo(merged, report)
        check_algorithm(merged, layers[-1], report)
    if merged["learner"] == "fast" and not bad & {"learner", "algo", "policy", "ppo", "policy_kwargs", "resources"}:
        _check_fast(merged, report)
    check_ranks(merged, bad, report)


def _check_environment(merged: Mapping[str, Any], own: Sequence[Layer], report: Report) -> None:
    task = merged.get("task")
    if task is not None:
        if "xml" not in merged and task not in PRESETS:
            report([], f'xml is missing: the task "{task}" needs a robot; or set env or entry_point')
        if merged["policy"] != "MlpPolicy":
            report(
                ["policy"],
                f'{merged["policy"]} does not fit: a built-in task\'s observation is a vector; use "MlpPolicy"',
            )
        if any(layer.has("env_kwargs") for layer in own):
            report(["env_kwargs"], "is for env or entry_point; options of a built-in task belong in task_options")
        return
    if any(layer.has("task_options") for layer in own):
        report(["task_options"], "is for built-in tasks; arguments of env or entry_point belong in env_kwargs")
    for argument in merged["env_kwargs"]:
        if argument in _SET_BY_JOB:
            report(
                [f"env_kwargs.{argument}"],
                f"is set by the job; use its key {_SET_BY_JOB[argument]} instead",
            )
        elif argument == "xml_file" and "xml" in merged and "env" in merged:
            report([f"env_kwargs.{argument}"], "the robot is given twice, as env_kwargs.xml_file and as xml; keep xml")


def _check_ppo(merged: Mapping[str, Any], report: Report) -> None:
    ppo = _PPO_DEFAULTS | merged["ppo"]
    n_steps, n_envs, ranks = ppo["n_steps"], merged["n_envs"], merged["resources"]["ranks"]
    batch_size = ppo["batch_size"]
    rollout = n_steps * n_envs
    size = f"n_steps × n_envs = {n_steps} × {n_envs} = {rollout}"
    if ppo["normalize_advantage"] and rollout == 1:
        report(["ppo.n_steps", "n_envs"], ONE_STEP)
    elif ppo["normalize_advantage"] and batch_size == 1:
        report(["ppo.batch_size"], "must be greater than 1, because normalize_advantage is on")
    elif rollout % batch_size and batch_size % ranks == 0:
        default = "" if "batch_size" in merged["ppo"] else " (Stable-Baselines3's default)"
        message = (
            f"{size} is not divisible by batch_size = {batch_size}{default}: every epoch would end with a minibatch of "
            f"{rollout % batch_size}; use {_better_sizes(n_steps, n_envs, batch_size, ranks)}"
        )
        report(["ppo.batch_size", "ppo.n_steps", "n_envs"], message)


def _check_fast(merged: Mapping[str, Any], report: Report) -> None:
    unfit = unfit_for_fast(
        algo=merged["algo"],
        policy=merged["policy"],
        hyperparameters=merged["ppo"],
        policy_kwargs=merged["policy_kwargs"],
        on_gpu=merged["resources"]["gpus"] > 0,
    )
    if unfit:
        report(["learner", *unfit], fast_refused("; ".join(unfit.values())))


@functools.lru_cache(maxsize=1024)
def _better_sizes(n_steps: int, n_envs: int, batch_size: int, ranks: int) -> str:
    """The nearest batch sizes that divide the rollout and are divisible by ranks; otherwise the nearest n_steps."""
    rollout = n_steps * n_envs
    nearby = range(max(2, batch_size - 10_000), min(rollout, batch_size + 10_000) + 1)
    sizes = [size for size in nearby if rollout % size == 0 and size % ranks == 0]
    below = [size for size in sizes if size < batch_size][-1:]
    above = [size for size in sizes if size > batch_size][:1]
    texts = [str(size) for size in below + above if batch_size / 4 <= size <= batch_size * 4]
    unit = batch_size // math.gcd(batch_size, n_envs)
    steps = f"n_steps = {max(1, round(n_steps / unit)) * unit}"
    return f"batch_size = {' or '.join(texts)}, or {steps}" if texts else steps
