"""The policy that a job with ``init`` starts from: read, examined before the launch, written to
``init.pt`` and copied into the job's own network. It is known by the hash of its content.

Rows and columns of the first and the last layers belong to observations and actions, which have
names where a built-in task makes them. Those of equal names are copied, and so are normalisation
statistics. What is new starts with zeros, so that a new observation has no effect at first, and a
new action is the middle of its range.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict, get_args

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file

from orchestrator.core.decoding import field_values, from_values
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.files.file_status import status_of
from orchestrator.core.job_reader import read_job
from orchestrator.core.messages import INIT_SUFFIX, ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import Algorithm, WorkerSpec, is_algorithm_class
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.envs.simulation_factory import observed_simulation
from orchestrator.worker.runtime import failures
from orchestrator.worker.tasks import input_names
from orchestrator.worker.training import algorithms, trained_policy, weights
from orchestrator.worker.training.algorithms import Model

SHOWN = 5
"""Names in a message."""
EXPECTED = "expected a job's directory, RUN_DIR/jobs/JOB_ID, or a model.zip of Stable-Baselines3"
ACTIVATIONS: Mapping[Algorithm, str] = {"ppo": "tanh", "a2c": "tanh", "sac": "relu", "td3": "relu"}
"""Defaults of ``activation_fn``."""
MARKS: Mapping[Algorithm, set[str]] = {
    "ppo": {"clip_range"},
    "sac": {"target_entropy"},
    "td3": {"target_policy_noise"},
    "a2c": {"gae_lambda"},
}
"""Attributes of a model of the first algorithm that has them all."""
LEAST_SIMULATE_S = 0.005
Spaces: TypeAlias = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""Of observations and actions."""


class UnfitStartPolicyError(ValueError):
    """The policy cannot be the start of this job; the message says why."""


class Names(TypedDict):
    observations: list[str]
    actions: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPolicy:
    label: str
    """What it is, for people."""
    algo: str
    activation: str
    """``activation_fn`` as in a job file, without underscores."""
    names: Names | None
    """None where observations and actions have no names."""
    policy: Mapping[str, torch.Tensor]
    """The policy's ``state_dict``."""
    statistics: Mapping[str, torch.Tensor] | None
    """Of normalisation, as of :func:`_statistics`; None where it had none."""
    temperature: torch.Tensor | None = None
    """The logarithm of SAC's entropy coefficient, where it was learnt."""
    env_steps: int | None = None
    """See :attr:`~orchestrator.core.worker_spec.WorkerSpec.init_env_steps`; no part of what is
    copied."""

    def sha256(self) -> str:
        """Of all that is copied, as hexadecimal text."""
        copied = {
            "policy": self.policy,
            "statistics": self.statistics,
            "temperature": self.temperature,
        }
        return weights.digest(
            {**copied, "names": np.frombuffer(json.dumps(self.names).encode(), np.uint8)}
        )

    def to_bytes(self) -> bytes:
        content = io.BytesIO()
        torch.save(dict(field_values(self)), content)
        return content.getvalue()

    @classmethod
    def from_file(cls, path: Path, sha256: str) -> StartPolicy:
        """What :meth:`to_bytes` has written. Runs no code of the file.

        :raises ValueError: it is not what was examined before the launch.
        """
        try:
            initial = cls(**torch.load(path, map_location="cpu", weights_only=True))
            problem = "" if initial.sha256() == sha256 else "it was changed in the job directory"
        except Exception as error:
            problem = failures.describe(error)
        if problem:
            raise ValueError(
                f"{path}: the policy to start from: {problem}; "
                "run the job file again, which puts it back, and then `retry` the job"
            )
        return initial


def names_of(simulation: Simulation) -> Names | None:
    """Names of the observations and actions of a task, where it gives them."""
    observations = simulation.observation_names()
    actions = input_names.controls(simulation.model).tolist()
    if observations is None or len(set(observations)) != len(observations):
        return None
    if len(actions) != len(simulation.task.actions.low):
        return None
    return {"observations": list(observations), "actions": actions}


# -- reading


def read(source: Path) -> StartPolicy:
    """The policy of a job (its ``model.zip``, or its newest checkpoint), or the one in a
    ``model.zip``, as it is now: one that was read is kept until a file of it changes.

    Statistics and checkpoints are pickles, which run code: users name only what they trust.

    :raises UsageError: there is none, or it cannot be read.
    """
    paths = JobPaths(source.parent if source.is_file() else source)
    files = (source, paths.spec, paths.model, paths.vecnormalize, paths.checkpoints)
    statuses = map(status_of, files)
    return _read(source, *[status and (status.st_mtime_ns, status.st_ino) for status in statuses])


@functools.lru_cache(maxsize=4)
def _read(source: Path, *_versions: object) -> StartPolicy:
    """:param _versions: of its files: one that has changed is read anew."""
    if source.is_file():
        paths = JobPaths(source.parent)
        if source.name == paths.model.name and paths.spec.is_file():
            return read(source.parent)
        return dataclasses.replace(
            _read_zip(source), env_steps=None
        )  # it may have started from one
    if not source.exists():
        raise UsageError(
            f"{source}: no such file or directory; {EXPECTED}; `run RUN_DIR` resumes jobs without it"
        )
    paths, spec = read_job(source)
    _refuse_algorithm_class(spec.algo)
    trained = trained_policy.newest_policy(paths, spec)
    if trained is None:
        policy = _read_zip(paths.model, needs_statistics=spec.normalize)
    else:
        state = trained.state
        policy = StartPolicy(
            label=f"its checkpoint at {state['env_steps']:,} env_steps, as it is not finished",
            algo=spec.algo,
            activation="",
            names=None,
            policy=dict(state["policy"]),
            statistics=_statistics(_running(state["normalization"])) if spec.normalize else None,
            temperature=state["temperature"],
            env_steps=state["env_steps"],
        )
    earlier = 0 if spec.init is None else spec.init_env_steps
    is_known = policy.env_steps is not None and earlier is not None
    return dataclasses.replace(
        policy,
        label=policy.label if trained else "its finished policy",
        activation=_activation(spec.algo, spec.policy_kwargs),
        names=_names_of_job(paths, spec),
        env_steps=policy.env_steps + earlier if is_known else None,
    )


def _read_zip(path: Path, *, needs_statistics: bool = False) -> StartPolicy:
    """What a ``model.zip`` holds outside of its pickles, and the statistics beside it."""
    paths = JobPaths(path.parent)
    try:
        _, parameters, variables = load_from_zip_file(path, load_data=False, device="cpu")
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
        policy: Any = parameters["policy"]
        has = {*data, *policy}
        algo = next((algo for algo, marks in MARKS.items() if marks <= has), None)
        if algo is None:
            raise ValueError(f"it is no model of {', '.join(MARKS)}")
        # Text that Stable-Baselines3 writes for people: "<class 'torch.nn.modules.activation.ELU'>".
        policy_kwargs = data.get("policy_kwargs") or {}
        activation = re.search(r"(\w+)'>$", str(policy_kwargs.get("activation_fn", "")))
    except Exception as error:
        raise UsageError(
            f"{path}: cannot be read: {failures.describe(error)}; {EXPECTED}"
        ) from error
    statistics: Mapping[str, Any] = {}
    if needs_statistics or paths.vecnormalize.is_file():
        statistics = trained_policy.saved_statistics(paths)
    is_normalized = needs_statistics or "obs_rms" in statistics
    return StartPolicy(
        label=f"{'with' if is_normalized else 'without'} statistics in {paths.vecnormalize.name}",
        algo=algo,
        activation=activation[1].lower() if activation else ACTIVATIONS[algo],
        names=None,
        policy=dict(policy),
        statistics=_statistics(_running(statistics)) if is_normalized else None,
        temperature=(variables or {}).get("log_ent_coef"),
        env_steps=data.get("num_timesteps"),
    )


def _running(normalization: Mapping[str, Any] | None) -> dict[str, Any]:
    """The running statistics among a normaliser's attributes: ``obs_rms``, or ``obs_rms.KEY`` for
    parts of a ``Dict``, and ``ret_rms``.
    """
    found = {}
    for name in ("obs_rms", "ret_rms"):
        rms = (normalization or {}).get(name)
        parts = (
            {f"{name}.{key}": part for key, part in rms.items()}
            if isinstance(rms, dict)
            else {name: rms}
        )
        found |= {name: part for name, part in parts.items() if part is not None}
    return found


def _statistics(running: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Mean, variance and count of each, such as ``obs_rms.mean``."""
    return {
        f"{name}.{part}": torch.as_tensor(np.array(getattr(rms, part), np.float64))
        for name, rms in running.items()
        for part in ("mean", "var", "count")
    }


def _activation(algo: str, policy_kwargs: Mapping[str, Any]) -> str:
    name: str = policy_kwargs.get("activation_fn") or ACTIVATIONS[algo]
    return name.replace("_", "")


def _refuse_algorithm_class(algo: str) -> None:
    if is_algorithm_class(algo):
        raise UnfitStartPolicyError(
            f"was trained with {algo}; a training can start from policies of "
            f"{', '.join(get_args(Algorithm))} alone"
        )


def _names_of_job(paths: JobPaths, spec: WorkerSpec) -> Names | None:
    """Names of a job's observations and actions, from its own copy of the robot."""
    if not env_factory.is_batched(spec):
        return None
    if spec.search_path is not None and spec.search_path not in sys.path:
        sys.path.append(spec.search_path)  # for a task of the user
    xml = str(env_factory.robot_path(spec, paths.root))
    options = dict(spec.task_options)
    try:
        return names_of(
            observed_simulation(
                xml, str(spec.task), options, spec.randomize, asymmetric=spec.asymmetric
            )
        )
    except Exception as error:
        raise UsageError(
            f"{paths.root}: its task cannot be made here: {failures.describe(error)}"
        ) from error


# -- copying


class Places(NamedTuple):
    """Where observations, or actions, of the job are in the source."""

    indices: torch.Tensor
    """``(size here,) int``; the size there for new ones."""
    size: int
    """There."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    tensors: Mapping[str, torch.Tensor]
    text: str
    """What was copied, for people."""


def start(model: Model, initial: StartPolicy) -> str:
    """Copy ``initial`` into a model that was just built. Returns what was copied, in words.

    :raises UnfitStartPolicyError: it does not fit.
    """
    assert model.env is not None
    simulation = getattr(model.env.unwrapped, "simulation", None)
    names = names_of(simulation) if isinstance(simulation, Simulation) else None
    normalization = model.get_vec_normalize_env()
    running = {} if normalization is None else _running(vars(normalization))
    copy = _copy(model.policy, initial, names, _statistics(running))
    model.policy.load_state_dict({name: copy.tensors[name] for name in model.policy.state_dict()})
    for name, rms in running.items():
        rms.mean = copy.tensors[f"{name}.mean"].numpy()
        rms.var = copy.tensors[f"{name}.var"].numpy()
        rms.count = copy.tensors[f"{name}.count"].item()
    temperature = algorithms.temperature(model)
    if temperature is not None and initial.temperature is not None:
        with torch.no_grad():
            temperature.copy_(initial.temperature)
    return copy.text


def _copy(
    policy: BasePolicy,
    initial: StartPolicy,
    names: Names | None,
    statistics: Mapping[str, torch.Tensor] | None = None,
) -> Copy:
    """What ``policy``, whose observations and actions have ``names``, and ``statistics`` have to
    become; without ``statistics``, the policy alone.

    :raises UnfitStartPolicyError: another network, no name in common, or other shapes where there
        are no names.
    """
    own = {**policy.state_dict(), **(statistics or {})}
    given = dict(initial.policy)
    if statistics is not None:
        given |= initial.statistics or {}
    axes: Mapping[str, Mapping[int, Places]] = {}
    text = "all observations and actions are equal: an exact copy"
    if names is not None and initial.names is not None and names != initial.names:
        if type(policy) is not ActorCriticPolicy:
            raise UnfitStartPolicyError(
                "its observations or actions have other names than those here, and only ppo and a2c"
                " can start from a policy with other ones"
            )
        axes = _named_axes(policy, names, initial.names)
        text = _copied_text(names, initial.names)
    tensors = {}
    for name in {**own, **given}:
        tensor = given.get(name)
        for axis, places in axes.get(name, {}).items():
            if tensor is not None and tensor.ndim > axis and tensor.shape[axis] == places.size:
                new = {"log_std": own[name].max().item(), "obs_rms.var": 1.0}.get(name, 0.0)
                entry = torch.full_like(tensor.narrow(axis, 0, 1), new)
                tensor = torch.cat([tensor, entry], axis).index_select(axis, places.indices)
        if tensor is None or name not in own or tensor.shape != own[name].shape:
            there, here = (
                tuple(each[name].shape) if name in each else None for each in (given, own)
            )
            raise UnfitStartPolicyError(
                f"another network: {name} is {there} there, and {here} here; policy_kwargs and "
                "use_sde must be as they were there and, without names, the numbers of observations "
                "and actions"
            )
        tensors[name] = tensor
    return Copy(tensors=tensors, text=text)


def _named_axes(
    policy: ActorCriticPolicy, names: Names, others: Names
) -> dict[str, dict[int, Places]]:
    """The axes of parameters of ``MlpPolicy`` and of statistics whose entries belong to observations
    or actions. Observations enter the first hidden layers or, without any, the last layers.

    :param others: names of the source.
    """
    own = policy.state_dict()
    observations = _places("observation", names["observations"], others["observations"])
    actions = _places("action", names["actions"], others["actions"])
    axes = {
        "obs_rms.mean": {0: observations},
        "obs_rms.var": {0: observations},
        "action_net.weight": {0: actions},
        "action_net.bias": {0: actions},
        "log_std": {own["log_std"].ndim - 1: actions},
    }
    if not (policy.dist_kwargs or {}).get("full_std", True):  # all actions share their deviation
        del axes["log_std"]
    for network, last in (("policy_net", "action_net"), ("value_net", "value_net")):
        first = f"mlp_extractor.{network}.0.weight"
        axes.setdefault(first if first in own else f"{last}.weight", {})[1] = observations
    return axes


def _places(what: str, own: Sequence[str], given: Sequence[str]) -> Places:
    number = {name: index for index, name in enumerate(given)}
    if not number.keys() & set(own):
        raise UnfitStartPolicyError(
            f"no {what} has the same name in both: there {listed(given, SHOWN)}; "
            f"here {listed(own, SHOWN)}"
        )
    return Places(torch.tensor([number.get(name, len(given)) for name in own]), len(given))


def _copied_text(names: Names, others: Names) -> str:
    texts = []
    for what, own, given in (
        ("observation", names["observations"], others["observations"]),
        ("action", names["actions"], others["actions"]),
    ):
        new = [name for name in own if name not in given]
        left = [name for name in given if name not in own]
        text = f"{len(own) - len(new)} of {count(len(own), what)} by name"
        if new:
            text += f", new: {listed(new, SHOWN)}"
        if new and left:  # they may be the same under other names
            text += f", not taken over: {listed(left, SHOWN)}"
        texts.append(text)
    return "; ".join(texts)


# -- before the launch


def untrained_source(request: ExaminationRequest) -> ExaminationRequest | None:
    """The examination of a source that is still to be trained; None for another source."""
    if "source" not in request.init:
        return None
    source = from_values(ExaminationRequest, request.init["source"]["request"])
    return dataclasses.replace(source, simulate_s=LEAST_SIMULATE_S, memory_mib=request.memory_mib)


def check(
    request: ExaminationRequest,
    answer: ExaminationAnswer,
    environment: Simulation | Spaces,
    of_source: Simulation | Spaces,
) -> ExaminationAnswer:
    """``answer`` with what of the policy is copied and, if it is trained already, with its hash.
    Then the policy is written beside ``request.stage_to``.

    :param of_source: the environment of a source that is still to be trained.
    :raises UnfitStartPolicyError: it does not fit the job.
    :raises UsageError: there is no such policy.
    """
    job = request.init
    is_trained = "path" in job
    source = job["path"] if is_trained else f"job {job['source']['job']}"
    try:
        initial = read(Path(source)) if is_trained else _untrained(job["source"], of_source)
        text = f"{source} ({initial.label}){_tried(request, initial, environment)}"
    except UnfitStartPolicyError as error:
        raise UnfitStartPolicyError(f"{source}: {error}") from None
    sha256 = None
    if is_trained:
        sha256 = initial.sha256()
        if request.stage_to is not None:
            staged = Path(f"{request.stage_to}{INIT_SUFFIX}")
            write_whole(staged, initial.to_bytes(), durable=False)
    return dataclasses.replace(
        answer,
        init_sha256=sha256,
        init_env_steps=initial.env_steps,
        init=text,
        notes=(*answer.notes, f"starts from {text}"),
    )


def _tried(
    request: ExaminationRequest, initial: StartPolicy, environment: Simulation | Spaces
) -> str:
    """What is copied, for people, as tried with a network as the job will have it. Networks for
    images and ``Dict`` are compared by the worker.
    """
    job = request.init
    for key, there, here in (
        ("algo", initial.algo, job["algo"]),
        ("normalize", initial.statistics is not None, job["normalize"]),
        ("activation_fn", initial.activation, _activation(job["algo"], job["policy_kwargs"])),
    ):
        if there != here:
            raise UnfitStartPolicyError(
                f"{initial.label}: was trained with {key} = {json.dumps(there)}, and here it is "
                f"{json.dumps(here)}; they must be equal"
            )
    if job["policy"] != "MlpPolicy":
        return ""
    names, spaces = _names_and_spaces(environment)
    network = _network(job, request.use_sde, spaces)
    return f": {_copy(network, initial, names).text}"


def _untrained(job: Mapping[str, Any], environment: Simulation | Spaces) -> StartPolicy:
    """The policy of a source before its training: all that decides whether it fits is known by
    then.
    """
    _refuse_algorithm_class(job["algo"])
    names, spaces = _names_and_spaces(environment)
    policy = {}
    if job["policy"] == "MlpPolicy":
        use_sde = from_values(ExaminationRequest, job["request"]).use_sde
        policy = _network(job, use_sde, spaces).state_dict()
    return StartPolicy(
        label="when it has succeeded",
        algo=job["algo"],
        activation=_activation(job["algo"], job["policy_kwargs"]),
        names=names,
        policy=policy,
        statistics={} if job["normalize"] else None,
    )


def _names_and_spaces(environment: Simulation | Spaces) -> tuple[Names | None, Spaces]:
    if isinstance(environment, Simulation):
        return names_of(environment), environment.env_spaces()
    return None, environment


def _network(job: Mapping[str, Any], use_sde: bool, spaces: Spaces) -> BasePolicy:
    settings = dict(job["policy_kwargs"]) | ({"use_sde": True} if use_sde else {})
    if "activation_fn" in settings:
        settings["activation_fn"] = algorithms.activation(settings["activation_fn"])
    kind: Any = algorithms.policy_class(job["algo"], "MlpPolicy")
    network: BasePolicy = kind(*spaces, lambda _: 0.0, **settings)
    return network
