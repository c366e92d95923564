"""Checks of jobs whose algorithm is one of sb3-contrib's, an optional extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.text import is_installed, missing_contrib
from orchestrator.core.worker_spec import CONTRIB
from orchestrator.jobfile.hyperparameters import DEFAULTS, PolicyKwargs
from orchestrator.jobfile.merged_job import MergedJob
from orchestrator.jobfile.validation import Report


def check_contrib(job: MergedJob) -> None:
    """Check a job's merged settings, except those that depend on keys that are invalid already."""
    merged = job.settings
    algo = merged["algo"]
    if algo not in CONTRIB or not job.are_valid("algo"):
        return
    if not is_installed("sb3_contrib"):
        job.report(["algo"], missing_contrib(algo))
    if algo == "crossq" and merged["policy"] != "MlpPolicy" and job.are_valid("policy"):
        job.report(
            ["policy"],
            f'{merged["policy"]} does not fit: crossq has only "MlpPolicy"; tqc and sac have the others',
        )
    if job.are_valid(algo, "policy_kwargs"):
        defaults = DEFAULTS[algo] | PolicyKwargs().model_dump()
        _check_values({**defaults, **merged[algo], **merged["policy_kwargs"]}, job.report)


def _check_values(values: Mapping[str, Any], report: Report) -> None:
    """:param values: hyperparameters of the algorithm and of its policy, whose names differ."""
    dropped = values.get("top_quantiles_to_drop_per_net", 0)
    quantiles = values["n_quantiles"]
    if dropped >= quantiles:
        text = f"top_quantiles_to_drop_per_net = {dropped} leaves none of policy_kwargs.n_quantiles = {quantiles}"
        report(
            ["tqc.top_quantiles_to_drop_per_net", "policy_kwargs.n_quantiles"],
            f"{text}; it must be smaller",
        )
    if "policy_delay" in values and values["batch_size"] == 1 and values["batch_norm"]:
        text = "must be greater than 1, as batch_norm is on: one transition has no variance to normalise by"
        report(["crossq.batch_size"], f"{text}; or set policy_kwargs.batch_norm = false")
    if values["shared_lstm"] and values["enable_critic_lstm"]:
        text = "excludes an LSTM of the value function; set policy_kwargs.enable_critic_lstm = false, or leave it out"
        report(["policy_kwargs.shared_lstm", "policy_kwargs.enable_critic_lstm"], text)
    if values["shared_lstm"] and values["share_features_extractor"] is False:
        text = "needs a shared features extractor; leave out share_features_extractor = false, or shared_lstm"
        report(["policy_kwargs.shared_lstm", "policy_kwargs.share_features_extractor"], text)
