"""The policy that a job with ``init`` starts from: read, compared before the launch, written to
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
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file

from orchestrator.core.decoding import field_values
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
NAMED_AXES = (
    ("obs_rms.mean", 0, "observations"),
    ("obs_rms.var", 0, "observations"),
    ("mlp_extractor.policy_net.0.weight", 1, "observations"),
    ("mlp_extractor.value_net.0.weight", 1, "observations"),
    ("action_net.weight", 0, "actions"),
    ("action_net.bias", 0, "actions"),
    ("log_std", -1, "actions"),
)
"""Parameters of ``MlpPolicy`` and statistics: the axis whose entries belong to what has names."""
Spaces: TypeAlias = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""Of observations and actions."""
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Names: TypeAlias = Mapping[str, list[str]]
"""Of ``observations`` and ``actions``."""


class UnfitStartPolicyError(ValueError):
    """The policy cannot be the start of this job; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPolicy:
    label: str
    """What it is, for people."""
    algo: str | None = None
    """None if unknown."""
    activation: str | None
    """``activation_fn`` as in a job file; None: the default of its algorithm."""
    names: Names | None = None
    """None where observations and actions have no names."""
    policy: Tensors
    """The policy's ``state_dict``."""
    statistics: Tensors | None
    """Of normalisation, as of :func:`_statistics`; None where it had none."""
    temperature: torch.Tensor | None = None
    """The logarithm of SAC's entropy coefficient, where it was learnt."""
    env_steps: int | None = None
    """See :attr:`~orchestrator.core.worker_spec.WorkerSpec.init_env_steps`; no part of what is
    copied."""

    def sha256(self) -> str:
        """Hash all that is copied."""
        names = np.frombuffer(json.dumps(self.names).encode(), np.uint8)
        return weights.digest(
            {
                "policy": self.policy,
                "statistics": self.statistics,
                "temperature": self.temperature,
                "names": names,
            }
        )

    def to_bytes(self) -> bytes:
        content = io.BytesIO()
        torch.save(dict(field_values(self)), content)
        return content.getvalue()

    @classmethod
    def from_file(cls, path: Path, sha256: str) -> StartPolicy:
        """Read what :meth:`to_bytes` has written. Runs no code of the file.

        :raises ValueError: it is not what was examined before the launch.
        """
        try:
            policy = cls(**torch.load(path, map_location="cpu", weights_only=True))
            problem = "" if policy.sha256() == sha256 else "was changed in the job directory"
        except Exception as error:
            problem = f"cannot be read: {failures.describe(error)}"
        if problem:
            raise ValueError(
                f"{path}: the policy to start from {problem}; "
                "run the job file again, which puts it back, and then `retry` the job"
            )
        return policy


def names_of(simulation: Simulation) -> Names | None:
    """Return the names of a task's observations and actions, or None if it gives none."""
    observations = simulation.observation_names()
    actions = input_names.controls(simulation.model).tolist()
    if observations is None or len(set(observations)) != len(observations):
        return None
    if len(actions) != len(simulation.task.actions.low):
        return None
    return {"observations": list(observations), "actions": actions}


# -- reading


def read(source: Path) -> StartPolicy:
    """Read the policy of a job (its ``model.zip``, or its newest checkpoint), or the one in a
    ``model.zip``.

    Statistics and checkpoints are pickles, which run code: users name only what they trust.

    :raises UsageError: there is none, or it cannot be read.
    """
    if not source.exists():
        raise UsageError(f"{source}: no such file or directory; {EXPECTED}")
    paths = JobPaths(source.parent if source.is_file() else source)
    if source.is_file() and not (source.name == paths.model.name and paths.spec.is_file()):
        return dataclasses.replace(_read_zip(source), env_steps=None)
    paths, spec = read_job(paths.root)
    trained = trained_policy.newest_policy(paths, spec)
    if trained is None:
        policy = _read_zip(paths.model, spec)
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
    """Read a ``model.zip`` without its pickles, and the ``vecnormalize.pkl`` beside it.

    :param spec: of its job; None: not known.
    """
    paths = JobPaths(path.parent)
    try:
        _, parameters, variables = load_from_zip_file(path, load_data=False, device="cpu")
        policy: Any = parameters["policy"]
        with zipfile.ZipFile(path) as archive:
            settings = json.loads(archive.read("data"))
        # Text that Stable-Baselines3 writes for people: "<class 'torch.nn.modules.activation.ELU'>"
        policy_kwargs = settings.get("policy_kwargs") or {}
        activation = re.search(r"(\w+)'>$", str(policy_kwargs.get("activation_fn")))
    except Exception as error:
        raise UsageError(
            f"{path}: cannot be read: {failures.describe(error)}; {EXPECTED}"
        ) from error
    statistics = None
    if paths.vecnormalize.is_file() if spec is None else spec.normalize:
        saved = trained_policy.saved_statistics(paths)
        if spec is not None or "obs_rms" in saved:  # else norm_obs=False
            statistics = _statistics(_running(saved))
    return StartPolicy(
        label=f"{path.name} {'without' if statistics is None else 'with'} normalisation",
        activation=activation[1].lower() if activation else None,
        policy=dict(policy),
        statistics=statistics,
        temperature=(variables or {}).get("log_ent_coef"),
        env_steps=settings.get("num_timesteps"),
    )


def _running(normalization: Mapping[str, Any]) -> dict[str, Any]:
    """Return the running statistics among a normaliser's attributes: ``obs_rms``, or
    ``obs_rms.KEY`` for parts of a ``Dict``, and ``ret_rms``.
    """
    found: dict[str, Any] = {}
    for name in ("obs_rms", "ret_rms"):
        rms = normalization.get(name)
        if isinstance(rms, Mapping):
            found |= {f"{name}.{key}": part for key, part in rms.items()}
        elif rms is not None:
            found[name] = rms
    return found


def _statistics(running: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return mean, variance and count of each, such as ``obs_rms.mean``."""
    return {
        f"{name}.{part}": torch.as_tensor(np.array(getattr(rms, part), np.float64))
        for name, rms in running.items()
        for part in ("mean", "var", "count")
    }


def _names_of_job(paths: JobPaths, spec: WorkerSpec) -> Names | None:
    """Return the names of a job's observations and actions, from its own copy of the robot."""
    if not env_factory.is_batched(spec):
        return None
    if spec.search_path is not None and spec.search_path not in sys.path:
        sys.path.append(spec.search_path)  # for a task of the user
    return names_of(
        observed_simulation(
            str(env_factory.robot_path(spec, paths.root)),
            str(spec.task),
            dict(spec.task_options),
            spec.randomize,
            asymmetric=spec.asymmetric,
        )
    )


# -- copying


def start(model: Model, initial: StartPolicy) -> str:
    """Copy ``initial`` into a model that was just built. Return what was copied, in words.

    :raises UnfitStartPolicyError: it does not fit.
    """
    assert model.env is not None
    simulation = getattr(model.env.unwrapped, "simulation", None)
    names = names_of(simulation) if isinstance(simulation, Simulation) else None
    normalization = model.get_vec_normalize_env()
    running = {} if normalization is None else _running(vars(normalization))
    own = {**model.policy.state_dict(), **_statistics(running)}
    given = {**initial.policy, **(initial.statistics or {})}
    merged = _merged(model.policy, own, given, names, initial.names)
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
    policy: BasePolicy,
    own: Tensors,
    given: Tensors,
    names: Names | None,
    others: Names | None,
) -> dict[str, torch.Tensor]:
    """Return the tensors of ``given`` in the order of the names here; the entries of new names are 0
    or, of a deviation or a variance, as in ``own``.

    :param policy: here. :param others: names of the source.
    :raises UnfitStartPolicyError: another network, other shapes where there are no names, or no
        name is common.
    """
    merged = dict(given)
    if names is not None and others is not None and names != others:
        if type(policy) is not ActorCriticPolicy:
            raise UnfitStartPolicyError(
                "its observations or actions have other names than those here, and only ppo and a2c"
                " can start from a policy with other ones"
            )
        places = {what: _places(what, own_names, others[what]) for what, own_names in names.items()}
        axes = list(NAMED_AXES)
        for network, last in (("policy_net", "action_net"), ("value_net", "value_net")):
            if f"mlp_extractor.{network}.0.weight" not in given:  # no hidden layers
                axes.append((f"{last}.weight", 1, "observations"))
        for name, axis, what in axes:
            # Without full_std, all actions share a column of log_std.
            if name in own and name in given and given[name].shape[axis] == len(others[what]):
                new = own[name].max().item() if name in ("log_std", "obs_rms.var") else 0.0
                entry = torch.full_like(merged[name].narrow(axis, 0, 1), new)
                extended = torch.cat([merged[name], entry], axis)
                merged[name] = extended.index_select(axis, places[what])
    for name in {**own, **merged}:
        here = tuple(own[name].shape) if name in own else None
        there = tuple(given[name].shape) if name in given else None
        if here is None or there is None or merged[name].shape != own[name].shape:
            raise UnfitStartPolicyError(
                f"another network: {name} is {there} there, and {here} here; policy_kwargs and "
                "use_sde must be as they were there and, without names, the numbers of observations "
                "and actions"
            )
    return merged


def _places(what: str, own: Sequence[str], given: Sequence[str]) -> torch.Tensor:
    """Return where each of ``own`` is in ``given``, and ``len(given)`` for new ones."""
    number = {name: index for index, name in enumerate(given)}
    if not number.keys() & set(own):
        raise UnfitStartPolicyError(
            f"no {what} have the same names in both: there {listed(given, SHOWN)}; "
            f"here {listed(own, SHOWN)}"
        )
    return torch.tensor([number.get(name, len(given)) for name in own])


def _copied_text(names: Names | None, others: Names | None) -> str:
    if names is None or others is None or names == others:
        return "all observations and actions are equal: an exact copy"
    texts = []
    for what, own in names.items():
        new = listed([name for name in own if name not in others[what]], SHOWN) or "none"
        left = listed([name for name in others[what] if name not in own], SHOWN) or "none"
        texts.append(f"new {what}: {new}; {what} not taken over: {left}")
    return "; ".join(texts)


# -- before the launch


def check(
    request: ExaminationRequest, answer: ExaminationAnswer, environment: Simulation | Spaces
) -> ExaminationAnswer:
    """Return ``answer`` with what of the policy is copied and with its hash. The policy is written
    beside ``request.stage_to``. Of a job that is still to be trained, settings and networks are
    compared, but no names.

    :raises UnfitStartPolicyError: it does not fit the job.
    :raises UsageError: there is no such policy.
    """
    job = request.init
    if "source" in job:
        source = job["source"]
        activation = source["policy_kwargs"].get("activation_fn")
        _require_equal_settings(job, source["algo"], source["normalize"], activation)
        if job["policy"] == source["policy"] == "MlpPolicy":
            given = _network(source, environment).state_dict()
            network = _network(job, environment)
            _merged(network, network.state_dict(), given, None, None)
        return answer
    initial = read(Path(job["path"]))
    text = f"{job['path']} ({initial.label})"
    algo = initial.algo or job["algo"]
    _require_equal_settings(job, algo, initial.statistics is not None, initial.activation)
    if job["policy"] == "MlpPolicy":  # others are compared by the worker
        names = names_of(environment) if isinstance(environment, Simulation) else None
        network = _network(job, environment)
        _merged(network, network.state_dict(), initial.policy, names, initial.names)
        text += f": {_copied_text(names, initial.names)}"
    if request.stage_to is not None:
        staged = Path(f"{request.stage_to}{INIT_SUFFIX}")
        write_whole(staged, initial.to_bytes(), durable=False)
    return dataclasses.replace(
        answer,
        init_sha256=initial.sha256(),
        init_env_steps=initial.env_steps,
        init=text,
        notes=(*answer.notes, f"starts from {text}"),
    )


def _require_equal_settings(
    job: Mapping[str, Any], algo: str, normalize: bool, activation: str | None
) -> None:
    """:raises UnfitStartPolicyError: the policy was trained with another of these settings."""
    default = ACTIVATIONS[job["algo"]]
    there = {
        "algo": algo,
        "normalize": normalize,
        "activation_fn": (activation or default).replace("_", ""),
    }
    here = {
        "algo": job["algo"],
        "normalize": job["normalize"],
        "activation_fn": (job["policy_kwargs"].get("activation_fn") or default).replace("_", ""),
    }
    for key, value in there.items():
        if value != here[key]:
            raise UnfitStartPolicyError(
                f"the policy was trained with {key} = {json.dumps(value)}, and here it is "
                f"{json.dumps(here[key])}; they must be equal"
            )


def _network(job: Mapping[str, Any], environment: Simulation | Spaces) -> BasePolicy:
    """Return a network as ``job`` will have it in ``environment``."""
    spaces = environment.env_spaces() if isinstance(environment, Simulation) else environment
    settings = dict(job["policy_kwargs"])
    if job["use_sde"]:
        settings["use_sde"] = True
    if "activation_fn" in settings:
        settings["activation_fn"] = algorithms.activation(settings["activation_fn"])
    kind: Any = algorithms.policy_class(job["algo"], "MlpPolicy")
    network: BasePolicy = kind(*spaces, lambda _: 0.0, **settings)
    return network
