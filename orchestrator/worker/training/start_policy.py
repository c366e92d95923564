"""The policy that a job with ``init`` starts from: read, examined before the launch, written to
``init.pt`` and copied into the job's own network. It is known by the hash of its content.

Rows and columns of the first and the last layers belong to observations and actions, which have
names where a built-in task makes them. Those of equal names are copied, and so are normalisation
statistics. What is new starts with zeros, so that a new observation has no effect at first, and a
new action is the middle of its range.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypedDict

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file

from orchestrator.core.decoding import field_values, from_values
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job_reader import read_job
from orchestrator.core.messages import INIT_SUFFIX, ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import JobPaths
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import WorkerSpec
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
ACTIVATIONS = {"ppo": "tanh", "a2c": "tanh", "sac": "relu", "td3": "relu"}
"""Defaults of ``activation_fn``."""
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
    algo: str | None = None
    """None: not known."""
    activation: str | None
    """``activation_fn`` as in a job file; None: the default of its algorithm."""
    names: Names | None = None
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
    ``model.zip``.

    Statistics and checkpoints are pickles, which run code: users name only what they trust.

    :raises UsageError: there is none, or it cannot be read.
    """
    paths = JobPaths(source.parent if source.is_file() else source)
    is_of_job = source.name == paths.model.name and paths.spec.is_file()
    if source.is_file() and not is_of_job:
        return _read_zip(source)
    if not source.exists():
        raise UsageError(
            f"{source}: no such file or directory; {EXPECTED}; `run RUN_DIR` resumes jobs without it"
        )
    paths, spec = read_job(paths.root)
    trained = trained_policy.newest_policy(paths, spec)
    if trained is None:
        policy = dataclasses.replace(_read_zip(paths.model, spec), label="its finished policy")
    else:
        state = trained.state
        policy = StartPolicy(
            label=f"its checkpoint at {state['env_steps']:,} env_steps, as it is not finished",
            activation=None,
            policy=dict(state["policy"]),
            statistics=_statistics(_running(state["normalization"])) if spec.normalize else None,
            temperature=state["temperature"],
            env_steps=state["env_steps"],
        )
    env_steps = policy.env_steps
    if spec.init is not None and env_steps is not None:
        env_steps = None if spec.init_env_steps is None else env_steps + spec.init_env_steps
    return dataclasses.replace(
        policy,
        algo=spec.algo,
        activation=spec.policy_kwargs.get("activation_fn"),
        names=_names_of_job(paths, spec),
        env_steps=env_steps,
    )


def _read_zip(path: Path, spec: WorkerSpec | None = None) -> StartPolicy:
    """What a ``model.zip`` holds outside of its pickles, and the statistics beside it.

    :param spec: of its job; None: not known.
    """
    paths = JobPaths(path.parent)
    try:
        _, parameters, variables = load_from_zip_file(path, load_data=False, device="cpu")
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
        policy: Any = parameters["policy"]
        # Text that Stable-Baselines3 writes for people: "<class 'torch.nn.modules.activation.ELU'>".
        policy_kwargs = data.get("policy_kwargs") or {}
        activation = re.search(r"(\w+)'>$", str(policy_kwargs.get("activation_fn", "")))
    except Exception as error:
        raise UsageError(
            f"{path}: cannot be read: {failures.describe(error)}; {EXPECTED}"
        ) from error
    statistics: Mapping[str, Any] = {}
    is_normalized = spec is not None and spec.normalize
    if is_normalized or (spec is None and paths.vecnormalize.is_file()):
        statistics = trained_policy.saved_statistics(paths)
        is_normalized = spec is not None or "obs_rms" in statistics
    return StartPolicy(
        label=f"{'with' if is_normalized else 'without'} statistics in {paths.vecnormalize.name}",
        activation=activation[1].lower() if activation else None,
        policy=dict(policy),
        statistics=_statistics(_running(statistics)) if is_normalized else None,
        temperature=(variables or {}).get("log_ent_coef"),
        env_steps=None if spec is None else data.get("num_timesteps"),
    )


def _running(normalization: Mapping[str, Any] | None) -> dict[str, Any]:
    """The running statistics among a normaliser's attributes: ``obs_rms``, or ``obs_rms.KEY`` for
    parts of a ``Dict``, and ``ret_rms``.
    """
    found: dict[str, Any] = {}
    for name in ("obs_rms", "ret_rms"):
        rms = (normalization or {}).get(name)
        if isinstance(rms, Mapping):
            found |= {f"{name}.{key}": part for key, part in rms.items()}
        elif rms is not None:
            found[name] = rms
    return found


def _statistics(running: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Mean, variance and count of each, such as ``obs_rms.mean``."""
    return {
        f"{name}.{part}": torch.as_tensor(np.array(getattr(rms, part), np.float64))
        for name, rms in running.items()
        for part in ("mean", "var", "count")
    }


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


def start(model: Model, initial: StartPolicy) -> str:
    """Copy ``initial`` into a model that was just built. Returns what was copied, in words.

    :raises UnfitStartPolicyError: it does not fit.
    """
    assert model.env is not None
    simulation = getattr(model.env.unwrapped, "simulation", None)
    names = names_of(simulation) if isinstance(simulation, Simulation) else None
    normalization = model.get_vec_normalize_env()
    running = {} if normalization is None else _running(vars(normalization))
    own = {**model.policy.state_dict(), **_statistics(running)}
    given = {**initial.policy, **(initial.statistics or {})}
    axes = _named_axes(model.policy, names, initial.names)
    merged = _merged(own, given, axes)
    model.policy.load_state_dict({name: merged[name] for name in model.policy.state_dict()})
    for name, rms in running.items():
        rms.mean = merged[f"{name}.mean"].numpy()
        rms.var = merged[f"{name}.var"].numpy()
        rms.count = merged[f"{name}.count"].item()
    temperature = algorithms.temperature(model)
    if temperature is not None and initial.temperature is not None:
        with torch.no_grad():
            temperature.copy_(initial.temperature)
    return _copied_text(names, initial.names)


def _merged(
    own: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor],
    axes: Mapping[str, Mapping[int, Places]],
) -> dict[str, torch.Tensor]:
    """The tensors of ``given``, along ``axes`` with the entries of common names; new ones are 0 or, of
    a deviation or a variance, as in ``own``.

    :raises UnfitStartPolicyError: another network, or other shapes where there are no names.
    """
    merged = {}
    for name in {**own, **given}:
        tensor = given.get(name)
        for axis, places in axes.get(name, {}).items():
            if tensor is not None and tensor.ndim > axis and tensor.shape[axis] == places.size:
                new = own[name].max().item() if name in ("log_std", "obs_rms.var") else 0.0
                entry = torch.full_like(tensor.narrow(axis, 0, 1), new)
                tensor = torch.cat([tensor, entry], axis).index_select(axis, places.indices)
        if tensor is None or name not in own or tensor.shape != own[name].shape:
            there, here = (
                tuple(all_[name].shape) if name in all_ else None for all_ in (given, own)
            )
            raise UnfitStartPolicyError(
                f"another network: {name} is {there} there, and {here} here; policy_kwargs and "
                "use_sde must be as they were there and, without names, the numbers of observations "
                "and actions"
            )
        merged[name] = tensor
    return merged


def _named_axes(
    policy: BasePolicy, names: Names | None, others: Names | None
) -> Mapping[str, Mapping[int, Places]]:
    """The axes of parameters of ``MlpPolicy`` and of statistics whose entries belong to observations
    or actions; none where all names are equal, or there are none. Observations enter the first
    hidden layers or, without any, the last layers.

    :param others: names of the source.
    :raises UnfitStartPolicyError: no name is common, or such a policy needs equal ones.
    """
    if names is None or others is None or names == others:
        return {}
    if type(policy) is not ActorCriticPolicy:
        raise UnfitStartPolicyError(
            "its observations or actions have other names than those here, and only ppo and a2c"
            " can start from a policy with other ones"
        )
    own = policy.state_dict()
    observations = _places("observations", names["observations"], others["observations"])
    actions = _places("actions", names["actions"], others["actions"])
    axes = {
        "obs_rms.mean": {0: observations},
        "obs_rms.var": {0: observations},
        "action_net.weight": {0: actions},
        "action_net.bias": {0: actions},
    }
    if (policy.dist_kwargs or {}).get("full_std", True):  # else all actions share their deviation
        axes["log_std"] = {own["log_std"].ndim - 1: actions}
    for network, last in (("policy_net", "action_net"), ("value_net", "value_net")):
        first = f"mlp_extractor.{network}.0.weight"
        axes.setdefault(first if first in own else f"{last}.weight", {})[1] = observations
    return axes


def _places(what: str, own: Sequence[str], given: Sequence[str]) -> Places:
    number = {name: index for index, name in enumerate(given)}
    if not number.keys() & set(own):
        raise UnfitStartPolicyError(
            f"no {what} have the same names in both: there {listed(given, SHOWN)}; "
            f"here {listed(own, SHOWN)}"
        )
    return Places(torch.tensor([number.get(name, len(given)) for name in own]), len(given))


def _copied_text(names: Names | None, others: Names | None) -> str:
    if names is None or others is None or names == others:
        return "all observations and actions are equal: an exact copy"
    texts = []
    for what, own, given in (
        ("observations", names["observations"], others["observations"]),
        ("actions", names["actions"], others["actions"]),
    ):
        new = [name for name in own if name not in given]
        left = [name for name in given if name not in own]
        text = f"{len(own) - len(new)} of {len(own)} {what} by name"
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
    if "path" in job:
        source = job["path"]
        initial = read(Path(source))
    else:
        source = f"job {job['source']['job']}"
        initial = _untrained(job, of_source)
    try:
        text = f"{source} ({initial.label}){_try(request, initial, environment)}"
    except UnfitStartPolicyError as error:
        raise UnfitStartPolicyError(f"{source} ({initial.label}): {error}") from None
    sha256 = None
    if "path" in job:
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


def _untrained(job: Mapping[str, Any], environment: Simulation | Spaces) -> StartPolicy:
    """The policy of the source of ``job`` before its training: all that decides whether it fits is
    known by then.
    """
    source = job["source"]
    names, spaces = _names_and_spaces(environment)
    policy = {}
    if source["policy"] == "MlpPolicy" and source["algo"] == job["algo"]:
        policy = _network(source, source["request"].get("use_sde", False), spaces).state_dict()
    return StartPolicy(
        label="when it has succeeded",
        algo=source["algo"],
        activation=source["policy_kwargs"].get("activation_fn"),
        names=names,
        policy=policy,
        statistics={} if source["normalize"] else None,
    )


def _try(
    request: ExaminationRequest, initial: StartPolicy, environment: Simulation | Spaces
) -> str:
    """Copy ``initial`` into a network as the job will have it; return what was copied, for people.
    Networks for images and ``Dict`` are compared by the worker.

    :raises UnfitStartPolicyError: it does not fit.
    """
    job = request.init
    default = ACTIVATIONS[job["algo"]]
    given = (initial.activation or default).replace("_", "")
    activation = (job["policy_kwargs"].get("activation_fn") or default).replace("_", "")
    for key, there, here in (
        ("algo", initial.algo or job["algo"], job["algo"]),
        ("normalize", initial.statistics is not None, job["normalize"]),
        ("activation_fn", given, activation),
    ):
        if there != here:
            raise UnfitStartPolicyError(
                f"was trained with {key} = {json.dumps(there)}, and here it is "
                f"{json.dumps(here)}; they must be equal"
            )
    if job["policy"] != "MlpPolicy":
        return ""
    names, spaces = _names_and_spaces(environment)
    network = _network(job, request.use_sde, spaces)
    axes = _named_axes(network, names, initial.names)
    _merged(network.state_dict(), initial.policy, axes)
    return f": {_copied_text(names, initial.names)}"


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
