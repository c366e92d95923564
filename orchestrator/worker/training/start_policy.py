"""The policy that a job with ``init`` starts from: the content of ``init.pt``, and its way into the
job's own network.

Rows and columns of the first and the last layers belong to observations and actions, which have
names where a built-in task makes them. Those of equal names are copied, and so are normalisation
statistics. What is new starts with zeros, so that a new observation has no effect at first, and a
new action is the middle of its range.
"""

from __future__ import annotations

import inspect
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

from orchestrator.core.decoding import field_values
from orchestrator.core.text import count, listed
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import input_names
from orchestrator.worker.training import algorithms, weights
from orchestrator.worker.training.algorithms import Model

SHOWN = 5
Axis: TypeAlias = Literal["observations", "actions"] | None
"""What the entries along an axis of a parameter belong to; None: to neither."""
PUT_BACK = "run the job file again, which puts it back, and then `retry` the job"
EQUAL = "policy_kwargs and use_sde must be as they were there"


class Names(NamedTuple):
    observations: tuple[str, ...]
    actions: tuple[str, ...]


class Numbers(NamedTuple):
    """Of the observations, or actions, that are copied: ``(n,) int`` each."""

    here: torch.Tensor
    """In the job."""
    there: torch.Tensor
    """In the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonNames:
    """What the job and the source both have."""

    observations: Numbers
    actions: Numbers

    def along(self, axis: Axis, size: int) -> Numbers:
        """Along an axis with ``size`` entries: all of them where it belongs to neither."""
        if axis is None:
            return Numbers(torch.arange(size), torch.arange(size))
        return self.observations if axis == "observations" else self.actions


class UnfitStartPolicyError(ValueError):
    """The policy cannot be the start of this job; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPolicy:
    label: str
    """What it is, for people."""
    algo: str
    activation: str
    names: Names | None
    """None where observations and actions have no names."""
    policy: Mapping[str, torch.Tensor]
    """The policy's ``state_dict``."""
    statistics: Mapping[str, Any] | None
    """Normalisation: ``obs_rms`` and ``ret_rms``, as of :func:`saved_statistics`; None where it had
    none."""
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
        values = dict(field_values(self))
        if self.names is not None:
            values["names"] = [list(self.names.observations), list(self.names.actions)]
        content = io.BytesIO()
        torch.save(values, content)
        return content.getvalue()

    @classmethod
    def from_file(cls, path: Path, sha256: str) -> StartPolicy:
        """What :meth:`to_bytes` has written. Runs no code of the file.

        :raises ValueError: it is not what was examined before the launch.
        """
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            if values["names"] is not None:
                observations, actions = values["names"]
                values["names"] = Names(tuple(observations), tuple(actions))
            initial = cls(**values)
            is_intact = initial.sha256() == sha256
        except Exception as error:
            raise ValueError(
                f"{path}: the policy to start from cannot be read: {error}; {PUT_BACK}"
            ) from error
        if not is_intact:
            raise ValueError(
                f"{path}: the policy to start from was changed in the job directory; {PUT_BACK}"
            )
        return initial


def saved_statistics(rms: Any) -> Any:
    """Mean, variance and count of running statistics; of each part of a ``Dict``."""
    if isinstance(rms, Mapping):
        return {name: saved_statistics(part) for name, part in rms.items()}
    return {
        name: torch.as_tensor(np.array(getattr(rms, name), np.float64))
        for name in ("mean", "var", "count")
    }


def activation_of(kind: type[BasePolicy], name: str | None) -> str:
    """``name`` of an activation in lower case, without underscores; None: the default of this class
    of policies.
    """
    default = inspect.signature(kind.__init__).parameters["activation_fn"].default
    return (name or str(default.__name__)).lower().replace("_", "")


def names_of(simulation: Simulation) -> Names | None:
    """Names of the observations and actions of a task, where it gives them."""
    task = simulation.task
    observations = simulation.observation_names()
    if observations is None:
        return None
    actions = input_names.controls(simulation.model).tolist()
    if len(set(observations)) != len(observations):
        return None
    if len(actions) != len(task.actions.low):
        return None
    return Names(tuple(observations), tuple(actions))


def start(model: Model, initial: StartPolicy) -> str:
    """Copy ``initial`` into a model that was just built. Returns what was copied, in words.

    :raises UnfitStartPolicyError: it does not fit.
    """
    assert model.env is not None
    simulation = getattr(model.env.unwrapped, "simulation", None)
    names = names_of(simulation) if isinstance(simulation, Simulation) else None
    copied = copy_into(model.policy, initial, names)
    normalization = model.get_vec_normalize_env()
    for name, statistics in (initial.statistics or {}).items():
        common = copied.common if name == "obs_rms" else None
        _fill(getattr(normalization, name), statistics, common)
    temperature = algorithms.temperature(model)
    if temperature is not None and initial.temperature is not None:
        with torch.no_grad():
            temperature.copy_(initial.temperature)
    return copied.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    common: CommonNames | None
    """Which observations and actions; None: all."""
    text: str
    """The same, for people."""


def copy_into(policy: BasePolicy, initial: StartPolicy, names: Names | None) -> Copied:
    """Copy the weights into ``policy``, whose observations and actions have ``names``.

    :raises UnfitStartPolicyError: another network, no name in common, or other shapes where there
        are no names.
    """
    _check_activation(policy, initial)
    own = policy.state_dict()
    given = initial.policy
    common = None
    have_names = names is not None and initial.names is not None
    if names is not None and initial.names is not None and names != initial.names:
        common = _common_names(policy, names, initial.names)
    has_own_deviations = (getattr(policy, "dist_kwargs", None) or {}).get("full_std", True)
    std_of: Axis = "actions" if has_own_deviations else None
    merged = {}
    for name in {**own, **given}:
        axes: tuple[Axis, ...] = ()
        if common is not None and name in own:
            axes = _axes(name, own, std_of)
        _check_sizes(name, own.get(name), given.get(name), axes, have_names=have_names)
        if common is None or all(axis is None for axis in axes):
            merged[name] = given[name]
        else:
            merged[name] = _copied_by_name(name, own[name], given[name], axes, common)
    policy.load_state_dict(merged)
    if names is None or initial.names is None or common is None:
        text = "all observations and actions are equal: an exact copy"
        return Copied(common=None, text=text)
    observations = _in_words("observation", names.observations, initial.names.observations)
    actions = _in_words("action", names.actions, initial.names.actions)
    return Copied(common=common, text=f"{observations}; {actions}")


def _check_activation(policy: BasePolicy, initial: StartPolicy) -> None:
    activation_fn: Any = policy.activation_fn
    activation = activation_of(type(policy), activation_fn.__name__)
    if activation != initial.activation:
        raise UnfitStartPolicyError(
            f"its activation_fn is {initial.activation}, and it is {activation} here; {EQUAL}"
        )


def _check_sizes(
    name: str,
    own: torch.Tensor | None,
    given: torch.Tensor | None,
    axes: Sequence[Axis],
    *,
    have_names: bool,
) -> None:
    """Check a parameter's sizes along the axes that belong to neither observations nor actions.

    :param own: the parameter here. :param given: the one of the source.
    :raises UnfitStartPolicyError: they differ, or one is missing.
    """
    own_shape = None if own is None else tuple(own.shape)
    given_shape = None if given is None else tuple(given.shape)
    if _fixed_sizes(own_shape, axes) == _fixed_sizes(given_shape, axes):
        return
    equal = EQUAL
    if not have_names:
        equal = f"observations and actions must be as many, as they have no names; {EQUAL}"
    raise UnfitStartPolicyError(
        f"another network: {name} is {given_shape} there, and {own_shape} here; {equal}"
    )


def _copied_by_name(
    name: str,
    own: torch.Tensor,
    given: torch.Tensor,
    axes: Sequence[Axis],
    common: CommonNames,
) -> torch.Tensor:
    """A parameter with the entries of ``given`` that belong to common names, and else zeros, or the
    deviation that it has here.
    """
    merged = own.clone() if name == "log_std" else torch.zeros_like(own)
    numbers = [common.along(axis, size) for axis, size in zip(axes, own.shape, strict=True)]
    here = _entries([one.here for one in numbers])
    there = _entries([one.there for one in numbers])
    merged[here] = given.to(own.device)[there]
    return merged


def _common_names(policy: BasePolicy, names: Names, others: Names) -> CommonNames:
    """The observations and actions that have the same names in both.

    :raises UnfitStartPolicyError: there is no observation or no action, or such a policy needs
        equal names.
    """
    if type(policy) is not ActorCriticPolicy:
        allowed = "only ppo and a2c can start from a policy with other ones"
        raise UnfitStartPolicyError(
            f"its observations or actions have other names than those here, and {allowed}"
        )
    return CommonNames(
        observations=_numbers("observation", names.observations, others.observations),
        actions=_numbers("action", names.actions, others.actions),
    )


def _numbers(what: str, own: Sequence[str], given: Sequence[str]) -> Numbers:
    number = {name: index for index, name in enumerate(given)}
    here = [index for index, name in enumerate(own) if name in number]
    if not here:
        lists = f"there {listed(given, SHOWN)}; here {listed(own, SHOWN)}"
        raise UnfitStartPolicyError(f"no {what} has the same name in both: {lists}")
    there = [number[own[index]] for index in here]
    return Numbers(torch.tensor(here), torch.tensor(there))


def _axes(name: str, own: Mapping[str, torch.Tensor], std_of: Axis) -> tuple[Axis, ...]:
    """Of a parameter of ``MlpPolicy``: what the entries along each axis belong to.

    Observations enter the first hidden layers or, without any, the last layers.

    :param std_of: None where all actions share their deviation (gSDE).
    """
    into_policy = "mlp_extractor.policy_net.0.weight"
    into_value = "mlp_extractor.value_net.0.weight"
    into_last_of_policy: Axis = None if into_policy in own else "observations"
    into_last_of_value: Axis = None if into_value in own else "observations"
    neither: tuple[Axis, ...] = (None,) * own[name].ndim
    named: dict[str, tuple[Axis, ...]] = {
        into_policy: (None, "observations"),
        into_value: (None, "observations"),
        "action_net.weight": ("actions", into_last_of_policy),
        "action_net.bias": ("actions",),
        "value_net.weight": (None, into_last_of_value),
        "log_std": (*neither[1:], std_of),
    }
    return named.get(name, neither)


def _fixed_sizes(shape: tuple[int, ...] | None, axes: Sequence[Axis]) -> list[int | None] | None:
    """The sizes that must be equal."""
    if shape is None:
        return None
    return [size for size, axis in itertools.zip_longest(shape, axes) if axis is None]


def _entries(along: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Index of the entries of a parameter with these numbers along its axes."""
    open_mesh = np.ix_(*[numbers.numpy() for numbers in along])
    return tuple(torch.from_numpy(numbers) for numbers in open_mesh)


def _in_words(what: str, own: Sequence[str], given: Sequence[str]) -> str:
    new = [name for name in own if name not in given]
    left = [name for name in given if name not in own]
    text = f"{len(own) - len(new)} of {count(len(own), what)} by name"
    if new:
        text += f", new: {listed(new, SHOWN)}"
    if new and left:  # they may be the same under other names
        text += f", not taken over: {listed(left, SHOWN)}"
    return text


def _fill(rms: Any, statistics: Any, common: CommonNames | None) -> None:
    """Replace running statistics; what is new keeps mean 0 and variance 1."""
    if isinstance(rms, Mapping):
        for name, part in rms.items():
            _fill(part, statistics[name], common)
        return
    for name in ("mean", "var"):
        values = np.array(getattr(rms, name), np.float64)
        given = statistics[name].numpy()
        if common is None:
            values[...] = given
        else:
            values[common.observations.here] = given[common.observations.there]
        setattr(rms, name, values)
    rms.count = float(statistics["count"])
