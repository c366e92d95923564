"""What is asked of a robot and its task before they are trained: the requests that jobs make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.job import Job
from orchestrator.core.messages import INIT_SUFFIX, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.core.worker_spec import WorkerSpec, is_algorithm_class
from orchestrator.machine.topology import available_memory_mib

LEAST_SIMULATE_S = 0.005
"""CPU seconds of the stability test of one robot, at least."""
MEMORY_SHARE = 0.8
"""Share of the free memory that all examining processes together may use."""
LEAST_MEMORY_MIB = 1024
"""That one may use, whatever is free."""
OF_INIT = ("algo", "policy", "policy_kwargs", "normalize")
"""Fields of a spec that decide whether a policy can be the start of its training, and how."""


def memory_mib(processes: int) -> int:
    """What each of so many examining processes may use."""
    share = int(available_memory_mib() * MEMORY_SHARE / max(1, processes))
    return max(LEAST_MEMORY_MIB, share)


def requests_of(
    jobs: Sequence[Job], sources: Sequence[Job] = ()
) -> tuple[dict[bytes, tuple[ExaminationRequest, Job]], dict[str, bytes]]:
    """The distinct requests by key, each with the first job that makes it; and the key of every
    ``job_id``.

    :param sources: jobs that ``jobs`` may start from, beside ``jobs`` themselves.
    """
    distinct: dict[bytes, tuple[ExaminationRequest, Job]] = {}
    key_of: dict[str, bytes] = {}
    by_id = {job.job_id: job for job in (*sources, *jobs)}
    for job in jobs:
        spec = job.spec
        source = by_id.get(job.spec.init_job or "")
        init: Mapping[str, Any] = {}
        if source is not None:
            init = {"source": _of_init(source.spec), **_of_init(spec)}
        elif spec.init is not None and spec.init_job is None:
            init = {"path": spec.init, **_of_init(spec)}
        request = dataclasses.replace(_request(job), init=init)
        key_of[job.job_id] = request.to_line()
        distinct.setdefault(key_of[job.job_id], (request, job))
    return distinct, key_of


def _request(job: Job) -> ExaminationRequest:
    spec = job.spec
    has_task = job.spec.task is not None
    return ExaminationRequest(
        xml=None if job.xml_source is None else str(job.xml_source),
        robot_settings=job.robot_settings,
        robot_maker=spec.robot_maker,
        params=spec.params,
        allow_outside=job.allow_outside,
        job_folder=None if job.folder is None else str(job.folder),
        model_edits=spec.model_edits,
        randomize=spec.randomize,
        asymmetric=spec.asymmetric,
        evaluate=spec.evaluate,
        task=spec.task,
        task_options=spec.task_options,
        env=spec.env,
        entry_point=spec.entry_point,
        env_kwargs=spec.env_kwargs,
        search_path=spec.search_path
        or (str(job.folder) if spec.robot_maker and job.folder else None),
        policy=None if has_task else spec.policy,
        normalize_images=has_task or bool(spec.policy_kwargs.get("normalize_images", True)),
        use_sde=bool(spec.hyperparameters.get("use_sde", False)),
        algo="ppo" if has_task and not is_algorithm_class(spec.algo) else spec.algo,
        fast=spec.learner == "fast" and not has_task,
    )


def _of_init(spec: WorkerSpec) -> dict[str, Any]:
    use_sde = bool(spec.hyperparameters.get("use_sde", False))
    return {"use_sde": use_sde, **{key: getattr(spec, key) for key in OF_INIT}}


def request_for_source(job: Job, paths: RunPaths, stage_to: Path) -> ExaminationRequest:
    """Can ``job`` start from the policy of the job that it names? Both are in the run directory,
    robots included.
    """
    directory = paths.job(job.job_id)
    spec = job.spec
    return dataclasses.replace(
        _request(job),
        xml=None if spec.xml is None else str(directory.root / spec.xml),
        robot_settings={},
        robot_maker=None,
        allow_outside=True,
        model_edits={},
        simulate_s=LEAST_SIMULATE_S,
        stage_to=str(stage_to),
        memory_mib=memory_mib(processes=1),
        init={"path": str(paths.job(str(spec.init_job)).root), **_of_init(spec)},
    )


def staged_policy(stage_to: Path) -> Path:
    """Where the policy to start from is written by an examination with this
    :attr:`ExaminationRequest.stage_to`.
    """
    return Path(f"{stage_to}{INIT_SUFFIX}")
