"""Check before the launch that a job can start from the policy that its ``init`` names, and copy that policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import UsageError
from orchestrator.core.messages import INIT_SUFFIX, ExaminationAnswer, ExaminationRequest
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.robots.env_check import UnfitError
from orchestrator.worker.training import algorithms, init_source
from orchestrator.worker.training.initial_policy import Names, UnfitInitError, copy_into, names_of

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


def check_init(
    request: ExaminationRequest, answer: ExaminationAnswer, environment: Simulation | Spaces
) -> ExaminationAnswer:
    """``answer`` with the policy's hash and what of it is copied; the policy is written beside ``request.stage_to``.

    :raises UnfitError: there is no such policy, or it does not fit the job.
    """
    job, source = request.init, Path(request.init["path"])
    try:
        initial = init_source.read(source)
        if initial.algo != job["algo"]:
            raise UnfitInitError(f"was trained with {initial.algo}, and algo is {job['algo']} here; they must be equal")
        if (initial.statistics is not None) != job["normalize"]:
            was = "with" if initial.statistics is not None else "without (no vecnormalize.pkl beside it has any)"
            set_to = str(initial.statistics is not None).lower()
            text = (
                f"was trained {was} normalisation of observations; set normalize = {set_to}, so that it sees the same"
            )
            raise UnfitInitError(text)
        names, spaces = None, environment
        if isinstance(environment, Simulation):
            names, spaces = names_of(environment), environment.env_spaces()
        copied = _copied(request, initial, names, spaces)
    except UnfitInitError as error:
        raise UnfitError(f"init: {source}: {error}") from None
    except UsageError as error:
        raise UnfitError(f"init: {error}", "settings") from None
    if request.stage_to is not None:
        write_whole(Path(f"{request.stage_to}{INIT_SUFFIX}"), initial.to_bytes(), durable=False)
    text = f"{source} ({initial.label}){copied}"
    return dataclasses.replace(
        answer, init_sha256=initial.sha256(), init=text, notes=(*answer.notes, f"starts from {text}")
    )


def _copied(request: ExaminationRequest, initial: Any, names: Names | None, spaces: Any) -> str:
    """Tried with a network as the job will have it; networks for images and ``Dict`` are compared by the worker."""
    job = request.init
    if job["policy"] != "MlpPolicy":
        return ""
    settings = dict(job["policy_kwargs"]) | ({"use_sde": True} if request.use_sde else {})
    if "activation_fn" in settings:
        settings["activation_fn"] = algorithms.activation(settings["activation_fn"])
    kind: Any = algorithms.CLASSES[job["algo"]].policy_aliases["MlpPolicy"]
    return f": {copy_into(kind(*spaces, lambda _: 0.0, **settings), initial, names)[1]}"
