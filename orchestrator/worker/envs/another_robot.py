"""A job's environments with another robot or scene in the place of its own: ``xml=`` of
``orchestrator.load`` and ``make_env``, and ``play --xml``.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.robot_sources import format_of
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.envs import env_factory
from orchestrator.worker.tasks import input_names


def with_robot(spec: WorkerSpec, job_dir: Path, xml: Path, *, nominal: bool = False) -> WorkerSpec:
    """``spec`` with the MJCF ``xml``, which is used where it lies.

    :param nominal: whether nothing of the job's ``randomize`` is drawn, which ``xml`` then need
        not fit.
    :raises UsageError: there is no such file, it is no MJCF, the job has no robot of its own, or a
        policy of the job would not find what it was trained to observe and control.
    """
    where = f"{spec.job_id}: xml = {xml}"
    if spec.xml is None:
        raise UsageError(f"{where}: this job has no MJCF that could be replaced; leave out xml")
    if not xml.is_file() or format_of(xml.name) is not None:
        raise UsageError(f"{where}: expected the file of an MJCF, such as {job_dir / spec.xml}")
    changed = dataclasses.replace(spec, xml=str(xml.absolute()))
    expected = _interface(spec, job_dir, nominal)
    try:
        found = _interface(changed, job_dir, nominal)
    except ValueError as error:  # MuJoCo cannot compile it, or it does not fit the task
        raise UsageError(f"{where}: {error}") from error
    for what, value in expected.items():
        if found.get(what) != value:
            raise UsageError(
                f"{where}: the policy has {what} {value}, and this robot {found.get(what)}; "
                "expected the robot of the job, perhaps with other masses, gains or surroundings"
            )
    return changed


def _interface(spec: WorkerSpec, job_dir: Path, nominal: bool) -> dict[str, object]:
    """What the environments of two robots have to share for a policy, by its name in messages."""
    with contextlib.closing(
        env_factory.make(spec, job_dir, n_envs=1, seed=0, nominal=nominal)
    ) as venv:
        facts: dict[str, object] = {
            "observations": venv.observation_space.shape or venv.observation_space,
            "actions": venv.action_space.shape or venv.action_space,
        }
        simulation: Any = getattr(venv, "simulation", None)
        if simulation is not None:
            facts["the control period in s"] = float(f"{simulation.control_period_s:.3g}")
            for number, name in enumerate(simulation.observation_names() or ()):
                facts[f"observation {number}"] = repr(name)
            for number, name in enumerate(input_names.controls(simulation.model).tolist()):
                facts[f"action {number}"] = repr(name)
    return facts
