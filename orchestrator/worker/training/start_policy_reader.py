"""Reading the policy that ``init`` names: of a job's directory, or a ``model.zip`` of
Stable-Baselines3.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from stable_baselines3.common.save_util import load_from_zip_file

from orchestrator.core.errors import UsageError
from orchestrator.core.files.file_status import status_of
from orchestrator.core.job_reader import outcome_sentence, read_job
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import Algorithm, WorkerSpec, is_algorithm_class
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
    "ppo": {"clip_range"},
    "sac": {"target_entropy"},
    "td3": {"target_policy_noise"},
    "a2c": {"gae_lambda"},
}
"""Attributes of a model and parameters of its policy, of the first algorithm that has them all."""
CLIPPING = {"clip_obs": 10.0, "epsilon": 1e-8}
"""How the ``VecNormalize`` of every job is set: its defaults."""
TRIES = 3
FROM_NAMED = f"a training can start from policies of {', '.join(get_args(Algorithm))} alone"


def read(source: Path) -> StartPolicy:
    """The policy of a job (its ``model.zip``, or its newest checkpoint), or the one in a
    ``model.zip``, as it is now: one that was read is kept until a file of it changes.

    Statistics and checkpoints are pickles, which run code: users name only what they trust.

    :raises UsageError: there is none, or it cannot be read.
    """
    return _read(source, _versions(source))


def _versions(source: Path) -> tuple[tuple[Any, ...], ...]:
    """What tells whether one of the files has changed from which a policy is read."""
    paths = JobPaths(source.parent if source.is_file() else source)
    files = [source, paths.model, paths.vecnormalize, paths.spec]
    with contextlib.suppress(OSError):
        files += paths.checkpoints_by_steps().values()
    statuses = ((file, status_of(file)) for file in files)
    return tuple(
        (file, status.st_mtime_ns, status.st_size, status.st_ino)
        for file, status in statuses
        if status is not None
    )


@functools.lru_cache(maxsize=4)
def _read(source: Path, _version: tuple[tuple[Any, ...], ...]) -> StartPolicy:
    """:param _version: of its files: one that has changed is read anew."""
    if source.is_file():
        paths = JobPaths(source.parent)
        if source.name == paths.model.name and paths.spec.is_file():
            return read(source.parent)
        if not zipfile.is_zipfile(source):
            raise UsageError(f"{source}: is no zip file; {EXPECTED}")
        return _of_file(source)
    if not source.exists():
        raise UsageError(
            f"{source}: no such file or directory; {EXPECTED}; `run RUN_DIR` resumes jobs without it"
        )
    paths, spec = read_job(source)
    if is_algorithm_class(spec.algo):
        raise UsageError(f"{source}: was trained with {spec.algo}; {FROM_NAMED}")
    newest = max(paths.checkpoints_by_steps(), default=spec.total_timesteps)
    is_trained_further = newest < spec.total_timesteps
    if paths.model.exists() and not is_trained_further:
        return _of_finished_job(paths, spec)
    return _of_checkpoint(paths, spec)


def _of_finished_job(paths: JobPaths, spec: WorkerSpec) -> StartPolicy:
    with _explaining(paths.model):
        saved = _saved_model(paths.model)
        activation = _activation_of_job(spec)
        normalization = _normalization(paths) if spec.normalize else None
        statistics = None if normalization is None else _statistics(normalization)
    if spec.normalize and statistics is None:
        raise UsageError(
            f"{paths.vecnormalize} is missing: the policy cannot be used without its normalisation statistics"
        )
    return StartPolicy(
        label="its finished policy",
        algo=spec.algo,
        activation=activation,
        names=_names(paths.root, spec),
        policy=saved.policy,
        statistics=statistics,
        temperature=saved.temperature,
        env_steps=_with_earlier(saved.env_steps, spec),
    )


def _of_file(path: Path) -> StartPolicy:
    """The policy in a ``model.zip`` of which no job is known."""
    paths = JobPaths(path.parent)
    statistics = None
    with _explaining(path):
        saved = _saved_model(path)
        description = _description(path, saved.policy)
        normalization = _normalization(paths)
        if normalization is not None and normalization["norm_obs"]:
            statistics = _statistics(normalization)
    if normalization is not None and statistics is not None:
        for name, value in CLIPPING.items():
            if normalization[name] != value:
                text = f"and {value} in every job, so that the policy would see other observations"
                raise UsageError(
                    f"{paths.vecnormalize}: {name} is {normalization[name]} there, {text}"
                )
    return StartPolicy(
        label="of Stable-Baselines3",
        algo=description.algo,
        activation=description.activation,
        names=None,
        policy=saved.policy,
        statistics=statistics,
        temperature=saved.temperature,
    )


def _of_checkpoint(paths: JobPaths, spec: WorkerSpec) -> StartPolicy:
    state = _newest_state(paths)
    normalization = state["normalization"]
    return StartPolicy(
        label=f"its checkpoint at {state['env_steps']:,} env_steps, as it is not finished",
        algo=spec.algo,
        activation=_activation_of_job(spec),
        names=_names(paths.root, spec),
        policy=dict(state["policy"]),
        statistics=None if normalization is None else _statistics(normalization),
        temperature=state["temperature"],
        env_steps=_with_earlier(state["env_steps"], spec),
    )


def _with_earlier(env_steps: int | None, spec: WorkerSpec) -> int | None:
    """``env_steps`` of a job, with those of the policy that it started from; None: not known."""
    earlier = 0 if spec.init is None else spec.init_env_steps
    return None if env_steps is None or earlier is None else env_steps + earlier


def _newest_state(paths: JobPaths) -> dict[str, Any]:
    """The content of the newest checkpoint."""
    for _ in range(TRIES):  # a job that runs removes its earlier ones
        found = paths.checkpoints_by_steps()
        if not found:
            text = "it has neither a policy nor a checkpoint to start from"
            raise UsageError(
                f"{paths.root}: {text}. {outcome_sentence(paths)}; wait for its first checkpoint, or finish it"
            )
        newest = found[max(found)]
        try:
            return checkpoint.load(newest.read_bytes())
        except FileNotFoundError:
            continue
        except Exception as error:
            raise UsageError(f"{newest}: cannot be loaded: {failures.describe(error)}") from error
    raise UsageError(
        f"{paths.checkpoints}: no checkpoint could be read, as the job replaces them; try again"
    )


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Whatever reading ``path`` raises in the block becomes an error that says so."""
    try:
        yield
    except Exception as error:
        raise UsageError(
            f"{path}: cannot be read: {failures.describe(error)}; {EXPECTED}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedModel:
    """What a ``model.zip`` holds outside of its pickles."""

    policy: dict[str, torch.Tensor]
    """The policy's ``state_dict``."""
    temperature: torch.Tensor | None
    """The logarithm of SAC's entropy coefficient, where it was learnt."""
    env_steps: int | None
    """Of its training; None: it does not say."""


def _saved_model(path: Path) -> _SavedModel:
    _, parameters, variables = load_from_zip_file(path, load_data=False, device="cpu")
    policy: Any = parameters["policy"]
    env_steps = _data(path).get("num_timesteps")
    return _SavedModel(
        policy=dict(policy),
        temperature=(variables or {}).get("log_ent_coef"),
        env_steps=env_steps if type(env_steps) is int and env_steps >= 0 else None,
    )


def _data(path: Path) -> Mapping[str, Any]:
    """What Stable-Baselines3 writes for people beside its pickles, which stay unread."""
    with zipfile.ZipFile(path) as archive:
        data: Mapping[str, Any] = json.loads(archive.read("data"))
    return data


def _normalization(paths: JobPaths) -> dict[str, Any] | None:
    """Attributes of the ``VecNormalize`` that was saved beside a ``model.zip``; None where none
    was.
    """
    if not paths.vecnormalize.is_file():
        return None
    saved: dict[str, Any] = vars(pickle.loads(paths.vecnormalize.read_bytes()))
    return saved


def _activation_of_job(spec: WorkerSpec) -> str:
    kind = algorithms.policy_class(spec.algo, spec.policy)
    return activation_of(kind, spec.policy_kwargs.get("activation_fn"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    algo: str
    activation: str


def _description(path: Path, policy: Mapping[str, Any]) -> _Description:
    """Algorithm and activation, from what :func:`_data` reads.

    :param policy: its parameters, by name.
    """
    data = _data(path)
    has = {*data, *policy}
    algo = next((algo for algo, marks in _MARKS.items() if marks <= has), None)
    if algo is None:
        raise ValueError(f"it is no model of {', '.join(get_args(Algorithm))}")
    policy_kwargs = data.get("policy_kwargs") or {}
    named = re.search(r"(\w+)'>$", str(policy_kwargs.get("activation_fn", "")))
    kind = algorithms.policy_class(algo, "MlpPolicy")
    activation = activation_of(kind, None if named is None else named[1])
    return _Description(algo=algo, activation=activation)


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
        return names_of(
            observed_simulation(
                xml, str(spec.task), options, spec.randomize, asymmetric=spec.asymmetric
            )
        )
    except Exception as error:
        raise UsageError(
            f"{root}: its task cannot be made here: {failures.describe(error)}"
        ) from error
