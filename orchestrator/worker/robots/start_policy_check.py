"""Check before the launch that a job can start from the policy that its ``init`` names, and copy
that policy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium

from orchestrator.core.decoding import from_values
from orchestrator.core.errors import UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.messages import INIT_SUFFIX, ExaminationAnswer, ExaminationRequest
from orchestrator.core.worker_spec import is_algorithm_class
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.robots.env_check import UnfitError
from orchestrator.worker.training import algorithms, start_policy_reader
from orchestrator.worker.training.start_policy import (
    Names,
    StartPolicy,
    UnfitStartPolicyError,
    activation_of,
    copy_into,
    names_of,
)

LEAST_SIMULATE_S = 0.005
Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


ENVIRONMENT = (
    "xml",
    "robot_settings",
    "robot_maker",
    "params",
    "model_edits",
    "randomize",
    "asymmetric",
    "task",
    "task_options",
    "env",
    "entry_point",
    "env_kwargs",
)
"""Fields of a request that decide which observations and actions there are."""


def source_of(request: ExaminationRequest) -> ExaminationRequest | None:
    """The examination of a source that is still to be trained; None for another one, or for the
    same environment.
    """
    if "source" not in request.init:
        return None
    source = from_values(ExaminationRequest, request.init["source"]["request"])
    if all(getattr(source, key) == getattr(request, key) for key in ENVIRONMENT):
        return None
    return dataclasses.replace(source, simulate_s=LEAST_SIMULATE_S, memory_mib=request.memory_mib)


def check_init(
    request: ExaminationRequest,
    answer: ExaminationAnswer,
    environment: Simulation | Spaces,
    of_source: Simulation | Spaces | None = None,
) -> ExaminationAnswer:
    """``answer`` with what of the policy is copied and, if it is trained already, with its hash.
    Then the policy is written beside ``request.stage_to``.

    :param of_source: the environment of a source that is still to be trained; None for the same as
        the job's.
    :raises UnfitError: there is no such policy, or it does not fit the job.
    """
    is_trained = "path" in request.init
    try:
        if is_trained:
            path = Path(request.init["path"])
            source = str(path)
            initial = start_policy_reader.read(path)
        else:
            source = f"job {request.init['source']['job']}"
            initial = _untrained_policy(request, of_source or environment)
        _check_training(request, initial)
        names, spaces = _names_and_spaces(environment)
        copied = _copy_note(request, initial, names, spaces)
    except UnfitStartPolicyError as error:
        raise UnfitError(f"init: {source}: {error}", "init") from None
    except UsageError as error:
        raise UnfitError(f"init: {error}", "settings") from None
    if is_trained and request.stage_to is not None:
        write_whole(Path(f"{request.stage_to}{INIT_SUFFIX}"), initial.to_bytes(), durable=False)
    text = f"{source} ({initial.label}){copied}"
    sha256 = initial.sha256() if is_trained else None
    notes = (*answer.notes, f"starts from {text}")
    return dataclasses.replace(
        answer, init_sha256=sha256, init_env_steps=initial.env_steps, init=text, notes=notes
    )


def _check_training(request: ExaminationRequest, initial: StartPolicy) -> None:
    """Compare how ``initial`` was trained with how the job trains.

    :raises UnfitStartPolicyError: by another algorithm, or normalised otherwise.
    """
    algo = request.init["algo"]
    if initial.algo != algo:
        raise UnfitStartPolicyError(
            f"was trained with {initial.algo}, and algo is {algo} here; they must be equal"
        )
    is_normalized = initial.statistics is not None
    if is_normalized != request.init["normalize"]:
        was = "with" if is_normalized else "without (no vecnormalize.pkl beside it has any)"
        set_to = str(is_normalized).lower()
        raise UnfitStartPolicyError(
            f"was trained {was} normalisation of observations; set normalize = {set_to}, "
            "so that it sees the same"
        )


def _names_and_spaces(environment: Simulation | Spaces) -> tuple[Names | None, Spaces]:
    if isinstance(environment, Simulation):
        return names_of(environment), environment.env_spaces()
    return None, environment


def _untrained_policy(request: ExaminationRequest, environment: Simulation | Spaces) -> StartPolicy:
    """The policy of a source before its training: all that decides whether it fits is known by
    then.
    """
    source = request.init["source"]
    if is_algorithm_class(source["algo"]):
        raise UnfitStartPolicyError(
            f"is trained with {source['algo']}; {start_policy_reader.FROM_NAMED}"
        )
    if source["policy"] != request.init["policy"]:
        raise UnfitStartPolicyError(
            f"its policy is {source['policy']}, and it is {request.init['policy']} here"
        )
    names, spaces = _names_and_spaces(environment)
    use_sde = from_values(ExaminationRequest, source["request"]).use_sde
    policy = _network(source, use_sde, spaces) if source["policy"] == "MlpPolicy" else None
    kind = algorithms.policy_class(source["algo"], source["policy"])
    return StartPolicy(
        label="when it has succeeded",
        algo=source["algo"],
        activation=activation_of(kind, source["policy_kwargs"].get("activation_fn")),
        names=names,
        policy={} if policy is None else policy.state_dict(),
        statistics={} if source["normalize"] else None,
    )


def _network(job: Mapping[str, Any], use_sde: bool, spaces: Spaces) -> Any:
    settings = dict(job["policy_kwargs"]) | ({"use_sde": True} if use_sde else {})
    if "activation_fn" in settings:
        settings["activation_fn"] = algorithms.activation(settings["activation_fn"])
    kind: Any = algorithms.policy_class(job["algo"], "MlpPolicy")
    return kind(*spaces, lambda _: 0.0, **settings)


def _copy_note(request: ExaminationRequest, initial: Any, names: Names | None, spaces: Any) -> str:
    """What is copied, for people, as tried with a network as the job will have it.

    Networks for images and ``Dict`` are compared by the worker.
    """
    if request.init["policy"] != "MlpPolicy":
        return ""
    network = _network(request.init, request.use_sde, spaces)
    return f": {copy_into(network, initial, names).text}"
