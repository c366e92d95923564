"""Reading the policy that ``init`` names: of a job's directory, or a ``model.zip`` of
Stable-Baselines3.
"""

from __future__ import annotations

import functools
import json
import pickle
import re
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from stable_baselines3.common.save_util import load_from_zip_file

from orchestrator.core.errors import UsageError
from orchestrator.core.job_files import outcome_sentence, read_job
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import Algorithm, WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.simulation_factory import observed_simulation
from orchestrator.worker.runtime import failures
from orchestrator.worker.training import algorithms, checkpoint
from orchestrator.worker.training.start_policy import (
    Names,
    StartPolicy,
    activation_of,
    names_of,
    saved_statistics,
)

EXPECTED = "expected a job's directory, RUN_DIR/jobs/JOB_ID, or a model.zip of Stable-Baselines3"
_MARKS: Mapping[Algorithm, set[str]] = {
    "recurrent-ppo": {"clip_range", "lstm_actor.weight_ih_l0"},
    "ppo": {"clip_range"},
    "tqc": {"target_entropy", "top_quantiles_to_drop_per_net"},
    "crossq": {"target_entropy", "policy_delay"},
    "sac": {"target_entropy"},
    "td3": {"target_policy_noise"},
    "a2c": {"gae_lambda"},
}
"""Attributes of a model and parameters of its policy, of the first algorithm that has them all."""
CLIPPING = {"clip_obs": 10.0, "epsilon": 1e-8}
"""How the ``VecNormalize`` of every job is set: its defaults."""
TRIES = 3


@functools.lru_cache(maxsize=4)
def read(source: Path) -> StartPolicy:
    """The policy of a job (its ``model.zip``, or its newest checkpoint), or the one in a
    ``model.zip``.

    Statistics and checkpoints are pickles, which run code: users name only what they trust.

    :raises UsageError: there is none, or it cannot be read.
    """
    if source.is_file():
        paths = JobPaths(source.parent)
        if source.name == paths.model.name and paths.spec.is_file():
            return read(source.parent)
        if not zipfile.is_zipfile(source):
            raise UsageError(f"{source}: is no zip file; {EXPECTED}")
        return _of_model(source, None)
    if not source.exists():
        raise UsageError(
            f"{source}: no such file or directory; {EXPECTED}; `run RUN_DIR` resumes jobs without it"
        )
    paths, spec = read_job(source)
    newest = max(paths.checkpoints_by_steps(), default=spec.total_timesteps)
    is_finished = (
        paths.model.exists() and newest >= spec.total_timesteps
    )  # else it is being trained further
    return _of_model(paths.model, spec) if is_finished else _of_checkpoint(paths, spec)


def _of_model(path: Path, spec: WorkerSpec | None) -> StartPolicy:
    """:param spec: of the job whose policy it is; None where that is not known."""
    normalization = JobPaths(path.parent).vecnormalize
    statistics = None
    try:
        _, parameters, variables = load_from_zip_file(path, load_data=False, device="cpu")
        policy: Any = parameters["policy"]
        algo, activation = _of_spec(spec) if spec is not None else _of_data(path, policy)
        if normalization.is_file() and (spec is None or spec.normalize):
            normalized = vars(pickle.loads(normalization.read_bytes()))
            statistics = (
                None if spec is None and not normalized["norm_obs"] else _statistics(normalized)
            )
    except Exception as error:
        raise UsageError(
            f"{path}: cannot be read: {failures.describe(error)}; {EXPECTED}"
        ) from error
    if spec is not None and spec.normalize and statistics is None:
        raise UsageError(
            f"{normalization} is missing: the policy cannot be used without its normalisation statistics"
        )
    if spec is None and statistics is not None:
        for name, value in CLIPPING.items():
            if normalized[name] != value:
                text = f"and {value} in every job, so that the policy would see other observations"
                raise UsageError(f"{normalization}: {name} is {normalized[name]} there, {text}")
    return StartPolicy(
        label="of Stable-Baselines3" if spec is None else "its finished policy",
        algo=algo,
        activation=activation,
        names=None if spec is None else _names(path.parent, spec),
        policy=dict(policy),
        statistics=statistics,
        temperature=(variables or {}).get("log_ent_coef"),
    )


def _of_checkpoint(paths: JobPaths, spec: WorkerSpec) -> StartPolicy:
    for _ in range(TRIES):  # a job that runs removes its earlier ones
        if not (found := paths.checkpoints_by_steps()):
            text = "it has neither a policy nor a checkpoint to start from"
            raise UsageError(
                f"{paths.root}: {text}. {outcome_sentence(paths)}; wait for its first checkpoint, or finish it"
            )
        try:
            state = checkpoint.load((newest := found[max(found)]).read_bytes())
            break
        except FileNotFoundError:
            continue
        except Exception as error:
            raise UsageError(f"{newest}: cannot be loaded: {failures.describe(error)}") from error
    else:
        raise UsageError(
            f"{paths.checkpoints}: no checkpoint could be read, as the job replaces them; try again"
        )
    algo, activation = _of_spec(spec)
    return StartPolicy(
        label=f"its checkpoint at {state['env_steps']:,} env_steps, as it is not finished",
        algo=algo,
        activation=activation,
        names=_names(paths.root, spec),
        policy=dict(state["policy"]),
        statistics=state["normalization"] and _statistics(state["normalization"]),
        temperature=state["temperature"],
    )


def _of_spec(spec: WorkerSpec) -> tuple[str, str]:
    kind = algorithms.policy_class(spec.algo, spec.policy)
    return spec.algo, activation_of(kind, spec.policy_kwargs.get("activation_fn"))


def _of_data(path: Path, policy: Mapping[str, Any]) -> tuple[str, str]:
    """Algorithm and activation, from what Stable-Baselines3 writes for people beside its pickles,
    which stay unread.

    :param policy: its parameters, by name.
    """
    with zipfile.ZipFile(path) as archive:
        data: Mapping[str, Any] = json.loads(archive.read("data"))
    algo = next((algo for algo, marks in _MARKS.items() if marks <= {*data, *policy}), None)
    if algo is None:
        raise ValueError(f"it is no model of {', '.join(get_args(Algorithm))}")
    named = re.search(r"(\w+)'>$", str((data.get("policy_kwargs") or {}).get("activation_fn", "")))
    kind = algorithms.policy_class(algo, "MlpPolicy")
    return algo, activation_of(kind, None if named is None else named[1])


def _statistics(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: saved_statistics(values[name]) for name in ("obs_rms", "ret_rms") if name in values
    }


def _names(root: Path, spec: WorkerSpec) -> Names | None:
    """Names of a job's observations and actions, from its own copy of the robot."""
    if not env_factory.is_batched(spec):
        return None
    if spec.search_path is not None and spec.search_path not in sys.path:
        sys.path.append(spec.search_path)  # for a task of the user
    try:
        xml = str(env_factory.robot_path(spec, root))
        options = dict(spec.task_options)
        drawn = spec.randomize
        return names_of(
            observed_simulation(xml, str(spec.task), options, drawn, asymmetric=spec.asymmetric)
        )
    except Exception as error:
        raise UsageError(
            f"{root}: its task cannot be made here: {failures.describe(error)}"
        ) from error
