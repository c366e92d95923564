"""Checks an algorithm's hyperparameters: that the algorithm has them, and that they are consistent."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from orchestrator.core.worker_spec import OFF_POLICY
from orchestrator.jobfile.hyperparameters import ALGORITHMS, POLICY_KEYS
from orchestrator.jobfile.validation import Layer, Report
from orchestrator.jobfile.validation_errors import Problems

ONE_STEP = "n_steps × n_envs = 1 × 1: the advantage of one step cannot be normalised; it must be greater than 1"

_DEFAULTS = {name: table().model_dump() for name, table in ALGORITHMS.items()}


def check_tables(entry: Layer, algos: Set[str], problems: Problems) -> None:
    """Check that an entry has only tables of its own algorithms; [defaults] may hold any, for other jobs.

    :param algos: the algorithms that the entry's jobs are trained with.
    """
    for name in ALGORITHMS:
        if name in entry.values and name not in algos:
            problems.add(entry.where(name), _not_used(name, *sorted(algos)))


def check_algorithm(merged: Mapping[str, Any], point: Layer, report: Report) -> None:
    """Report hyperparameters that one job's algorithm would refuse or ignore.

    :param point: the job's matrix point; a hyperparameter of another algorithm there would make equal jobs.
    """
    algo: str = merged["algo"]
    for name in ALGORITHMS:
        if name in point.values and name != algo:
            report([f"{name}.{key}" for key in point.values[name]], _not_used(name, algo))
    _check_policy(algo, merged, report)
    if algo == "a2c":
        _check_a2c(merged, report)
    elif algo in OFF_POLICY:
        _check_off_policy(algo, merged, report)


def _not_used(name: str, *algos: str) -> str:
    """The message for a table, or a key of one, that has no effect."""
    return f'is for algo = "{name}", and algo is {" or ".join(algos)} here; leave it out, or set algo = "{name}"'


def _check_policy(algo: str, merged: Mapping[str, Any], report: Report) -> None:
    given = merged["policy_kwargs"]
    for key in given:
        if key not in POLICY_KEYS[algo]:
            known = ", ".join(sorted(POLICY_KEYS[algo]))
            report([f"policy_kwargs.{key}"], f"the policies of {algo} have no {key}; they have {known}")
    critic, arch = "qf" if algo in OFF_POLICY else "vf", given.get("net_arch")
    if isinstance(arch, dict) and critic not in arch:
        report(
            ["policy_kwargs.net_arch"], f"the networks of {algo} are pi and {critic}: {{ pi = […], {critic} = […] }}"
        )
    if given.get("squash_output") and algo not in OFF_POLICY and not _values(algo, merged)["use_sde"]:
        report(["policy_kwargs.squash_output"], f"works only with gSDE; set {algo}.use_sde = true, or leave it out")


def _check_a2c(merged: Mapping[str, Any], report: Report) -> None:
    values, n_envs = _values("a2c", merged), merged["n_envs"]
    if values["normalize_advantage"] and values["n_steps"] * n_envs == 1:
        report(["a2c.n_steps", "n_envs"], ONE_STEP)


def _check_off_policy(algo: str, merged: Mapping[str, Any], report: Report) -> None:
    values, n_envs, total = _values(algo, merged), merged["n_envs"], merged["total_timesteps"]
    frequency = values["train_freq"]
    if isinstance(frequency, list) and frequency[1] == "episode" and n_envs > 1:
        message = f"whole episodes need n_envs = 1, and n_envs is {n_envs}; set n_envs = 1, or a number of steps"
        report([f"{algo}.train_freq"], message)
    if values["n_steps"] > 1 and merged["policy"] == "MultiInputPolicy":
        report([f"{algo}.n_steps"], "must be 1: Stable-Baselines3 supports no n-step returns with Dict observations")
    if values["learning_starts"] >= total:
        message = f"learning_starts = {values['learning_starts']:_} is not below total_timesteps = {total:_}"
        report([f"{algo}.learning_starts", "total_timesteps"], f"{message}, so the policy would not be trained")


def _values(algo: str, merged: Mapping[str, Any]) -> dict[str, Any]:
    return {**_DEFAULTS[algo], **merged[algo]}
