"""A job's environments with another robot or scene in the place of its own: ``xml=`` of
``orchestrator.load`` and ``make_env``, and ``play --xml``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.errors import UsageError
from orchestrator.core.robot_sources import format_of
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import input_names

SAME_PERIOD = 1e-3
"""Relative difference of control periods that is none."""


def with_robot(spec: WorkerSpec, job_dir: Path, xml: Path, *, nominal: bool = False) -> WorkerSpec:
    """``spec`` with the MJCF ``xml``, which is used where it lies.

    One environment of each robot is made for the comparison, and closed: those of the caller are of
    another kind (a scene, single environments), and are made once the robot is known to fit.

    :param nominal: whether nothing of the job's ``randomize`` is drawn, which ``xml`` then need
        not fit.

    :raises UsageError: there is no such file, it is no MJCF, the job has no robot of its own, or a
        policy of the job would not find what it was trained to observe and control.
    """
    if spec.xml is None:
        raise UsageError(
            f"{spec.job_id}: xml = {xml}: this job has no MJCF that could be replaced; leave out xml"
        )
    if not xml.is_file():
        raise UsageError(f"{spec.job_id}: xml = {xml}: no such file; expected an MJCF")
    other_format = format_of(xml.name)
    if other_format is not None:
        raise UsageError(
            f"{spec.job_id}: xml = {xml}: is {other_format.with_article}; expected an MJCF, such as that of this job, "
            f"{job_dir / spec.xml}: the directory of a job whose robot is {other_format.with_article} has the MJCF "
            "that was made of it in robot/"
        )
    changed = dataclasses.replace(spec, xml=str(xml.absolute()))
    settings: dict[str, Any] = {"n_envs": 1, "seed": 0, "nominal": nominal}
    with contextlib.closing(env_factory.make(spec, job_dir, **settings)) as own:
        try:
            other = env_factory.make(changed, job_dir, **settings)
        except ValueError as error:  # MuJoCo cannot compile it, or it does not fit the task
            raise UsageError(f"{spec.job_id}: xml = {xml}: {error}") from error
        with contextlib.closing(other):
            difference = _difference(own, other)
    if difference is not None:
        raise UsageError(
            f"{spec.job_id}: xml = {xml}: {difference}; expected the robot of the job, perhaps with "
            "other masses, gains or surroundings"
        )
    return changed


def _difference(own: VecEnv, other: VecEnv) -> str | None:
    """In what the environments of two robots differ for a policy; None: in nothing."""
    for what, of_own, of_other in (
        ("observations", own.observation_space, other.observation_space),
        ("actions", own.action_space, other.action_space),
    ):
        if (sizes := _sizes(of_own, of_other)) is not None:
            return f"the policy has {what} {sizes[0]}, and this robot {sizes[1]}"
    own_task = _interface(own)
    other_task = _interface(other)
    if not math.isclose(own_task.period_s, other_task.period_s, rel_tol=SAME_PERIOD):
        return (
            f"the policy acts every {own_task.period_s:g} s, and on this robot it would act every "
            f"{other_task.period_s:g} s (its timestep is another one)"
        )
    return _first_difference(
        "observation", own_task.observations, other_task.observations
    ) or _first_difference("action", own_task.actions, other_task.actions)


def _first_difference(what: str, own: Sequence[str], other: Sequence[str]) -> str | None:
    for number, (expected, found) in enumerate(zip(own, other, strict=False)):
        if expected != found:
            return f"{what} {number} of the policy is {expected!r}, and of this robot {found!r}"
    return None


def _sizes(own: spaces.Space[Any], other: spaces.Space[Any]) -> tuple[object, object] | None:
    """The shapes of two spaces, or the spaces themselves, where these differ."""
    if own.shape is not None and other.shape is not None:
        return None if own.shape == other.shape else (own.shape, other.shape)
    return None if own == other else (own, other)


@dataclasses.dataclass(frozen=True, slots=True)
class _Interface:
    """What a task says of itself; empty for other environments."""

    observations: Sequence[str] = ()
    """Names, as of ``actions``; empty where there are none."""
    actions: Sequence[str] = ()
    period_s: float = 0.0


def _interface(venv: VecEnv) -> _Interface:
    simulation: Simulation | None = getattr(venv, "simulation", None)
    if simulation is None:
        return _Interface()
    return _Interface(
        observations=simulation.observation_names() or (),
        actions=input_names.controls(simulation.model).tolist(),
        period_s=simulation.control_period_s,
    )
