"""Jobs with policies, and the files to which they are exported."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import worker_helpers as helpers

from orchestrator.core.paths import JobPaths
from orchestrator.features.export.worker import job_export
from orchestrator.worker.envs import env_factory
from orchestrator.worker.training import asymmetric_critic, learners


def job(directory: Path, robot: str = "arm", scale: float = 0.2, **changes: Any) -> JobPaths:
    """A job's directory with a policy that was never trained, and whose actions differ widely all
    the same.

    :param scale: of its weights.
    """
    values = {
        "task": "reach",
        "xml": f"robot/{robot}.xml",
        "normalize": True,
        "job_id": directory.name,
    }
    spec = helpers.spec(**{**values, "learner": "sb3", "hyperparameters": {}, **changes})
    paths = helpers.job(directory, spec)
    if spec.xml is not None:
        paths.robot.mkdir()
        shutil.copyfile(helpers.REPOSITORY / "mjcf" / f"{robot}.xml", paths.root / spec.xml)
        paths.robot_hash.write_text("c0ffee")
    venv = env_factory.make(spec, paths.root, n_envs=1, seed=0)
    model = learners.build(spec, venv).model
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.copy_(torch.as_tensor(rng.normal(0, scale, tuple(parameter.shape))))
    if hidden := asymmetric_critic.privileged_values(venv):
        asymmetric_critic.set_to_zero(model, hidden)  # as in training
    model.save(paths.model)
    if spec.normalize:
        normalized: Any = env_factory.normalized_env(spec, venv)
        rms = normalized.obs_rms
        for part in rms.values() if isinstance(rms, dict) else [rms]:
            size = part.mean.shape
            part.mean, part.var = rng.normal(0, 3, size), rng.uniform(1e-6, 4, size)
        normalized.save(str(paths.vecnormalize))
    return paths


def export(paths: JobPaths, suffix: str, **options: Any) -> Path:
    to = paths.root / f"{paths.root.name}{suffix}"
    job_export.export(
        argparse.Namespace(
            **{"job_dir": paths.root, "to": to, "checkpoint": None, "check": False, **options}
        )
    )
    return to
