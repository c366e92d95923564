"""A job's environments with another robot or scene in the place of its own: ``xml=`` of
``orchestrator.load`` and ``make_env``, and ``play --xml``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from orchestrator.core.errors import UsageError
from orchestrator.core.robot_sources import format_of
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.envs.simulation import Simulation
from orchestrator.worker.tasks import input_names


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
    if not xml.is_file() or format_of(xml.name) is not None:
        raise UsageError(
            f"{spec.job_id}: xml = {xml}: expected the file of an MJCF, such as {job_dir / spec.xml}"
        )
    changed = dataclasses.replace(spec, xml=str(xml.absolute()))
    settings: dict[str, Any] = {"n_envs": 1, "seed": 0, "nominal": nominal}
    with contextlib.closing(env_factory.make(spec, job_dir, **settings)) as own:
        try:
            other = env_factory.make(changed, job_dir, **settings)
        except ValueError as error:  # MuJoCo cannot compile it, or it does not fit the task
            raise UsageError(f"{spec.job_id}: xml = {xml}: {error}") from error
        with contextlib.closing(other):
            expected, found = _interface(own), _interface(other)
    for what, value in expected.items():
        if found.get(what) != value:
            raise UsageError(
                f"{spec.job_id}: xml = {xml}: the policy has {what} {value}, and this robot {found.get(what)}; "
                "expected the robot of the job, perhaps with other masses, gains or surroundings"
            )
    return changed


def _interface(venv: VecEnv) -> dict[str, object]:
    """What the environments of two robots have to share for a policy, by its name in messages."""
    spaces = {"observations": venv.observation_space, "actions": venv.action_space}
    facts: dict[str, object] = {
        what: space if space.shape is None else space.shape for what, space in spaces.items()
    }
    simulation: Simulation | None = getattr(venv, "simulation", None)
    if simulation is not None:
        facts["the control period in s"] = float(f"{simulation.control_period_s:.3g}")
        for number, name in enumerate(simulation.observation_names() or ()):
            facts[f"observation {number}"] = repr(name)
        for number, name in enumerate(input_names.controls(simulation.model).tolist()):
            facts[f"action {number}"] = repr(name)
    return facts
