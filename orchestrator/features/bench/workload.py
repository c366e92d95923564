"""What every process of a benchmark does: the same training of one job of the job file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.errors import SpecError, UsageError
from orchestrator.core.files.atomic_files import clone_tree
from orchestrator.core.job import Job
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import FROM_NOTHING, Mode, WorkerSpec
from orchestrator.examination import preflight
from orchestrator.jobfile import Experiment
from orchestrator.machine.topology import available_memory_mib

ENDLESS_STEPS = 10**12
"""A measured training runs until it is killed."""
MEMORY_SHARE = 0.8
DAY_S = 86_400.0
SB3_DEFAULTS = {"batch_size": 64, "n_epochs": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One job of the job file, after its robot has been examined."""

    job: Job
    bundle: Path | None
    xml: str | None
    """The robot's main file in ``bundle``, the folder of the robot and its assets."""
    task: str | None
    robot_hash: str | None

    def hyperparameter(self, name: str) -> int:
        """:param name: a key of :data:`SB3_DEFAULTS`."""
        return int(self.job.spec.hyperparameters.get(name, SB3_DEFAULTS[name]))

    @property
    def updates_an_iteration(self) -> int | None:
        """Optimiser steps; None where ``target_kl`` may end an update early."""
        if self.job.spec.hyperparameters.get("target_kl") is not None:
            return None
        batch_size = self.hyperparameter("batch_size")
        return self.hyperparameter("n_epochs") * math.ceil(
            self.job.spec.steps_an_iteration / batch_size
        )

    def copies(self, count: int) -> list[Job]:
        """``count`` jobs that differ only in their names, without evaluation, checkpoint or end.

        Their memory requests fit into memory together, so that the supervisor admits all of them at
        once.
        """
        asked = self.job.resources.for_measurement()
        share = max(1, int(available_memory_mib() * MEMORY_SHARE / (count * asked.ranks)))
        memory_mib = min(asked.memory_mib, share)
        limits = replace(asked, memory_mib=memory_mib, timeout_s=DAY_S, stall_timeout_s=DAY_S)
        spec = training_alone(self.job.spec, ENDLESS_STEPS)
        job = replace(self.job, resources=limits, max_retries=0)
        names = [f"copy-{number}" for number in range(count)]
        return [
            replace(job, job_id=name, spec=replace(spec, job_id=name, name=name)) for name in names
        ]

    def make_job_directory(self, job: Job, paths: JobPaths) -> None:
        """Make the job directory of one copy as a supervisor would."""
        paths.root.mkdir(parents=True)
        xml = None
        if self.bundle is not None:
            clone_tree(self.bundle, paths.robot)
            xml = f"robot/{self.xml}"
        spec = replace(job.spec, xml=xml, task=self.task or job.spec.task)
        paths.spec.write_text(spec.to_json(), encoding="utf-8")

    def over_ranks(self, ranks: int, mode: Mode = "allreduce") -> Work:
        """The same work distributed over ``ranks`` processes; the algorithm stays the same."""
        spec = replace(self.job.spec, ranks=ranks, mode=mode)
        resources = replace(self.job.resources, ranks=ranks)
        return replace(self, job=replace(self.job, spec=spec, resources=resources))


def training_alone(spec: WorkerSpec, steps: int) -> WorkerSpec:
    """``spec`` for that many env_steps, without evaluation and video, and with no checkpoint but at
    the end.

    It waits for no other job, and starts with random weights in every baseline, whatever ``init``
    says.
    """
    return replace(
        spec,
        total_timesteps=steps,
        **FROM_NOTHING,
        after=(),
        eval_episodes=0,
        video=False,
        checkpoint_every=ENDLESS_STEPS,
        checkpoint_every_s=None,
    )


def pick(experiment: Experiment, name: str | None) -> Job:
    """The job to be measured: the first one, or the first with that name.

    :raises UsageError: no job has that name, the jobs are made as the run goes on, or the job needs
        a GPU or another algorithm than PPO.
    """
    if (maker := experiment.job_maker) is not None:
        what = f"a {maker.noun} makes its jobs as it runs, so that there is none to measure"
        advice = "Remove its table from a copy of the file to measure the unchanged job"
        raise UsageError(f"{experiment.source}: {what}. {advice}")
    named = [job for job in experiment.jobs if name in (None, job.job_id, job.spec.name)]
    if not named:
        valid = dict.fromkeys(job.spec.name for job in experiment.jobs)
        raise UsageError(
            f"--job {name}: not a job of {experiment.source}; valid: {', '.join(valid)}"
        )
    job = named[0]
    if job.resources.gpus:
        text = f"{experiment.source}: {job.job_id} asks for a GPU, but bench measures trainings on CPUs."
        raise UsageError(f"{text} Choose another with --job, or --set resources.gpus=0")
    if job.spec.algo != "ppo":
        text = f'{experiment.source}: {job.job_id} has algo = "{job.spec.algo}", but bench measures PPO.'
        raise UsageError(f"{text} Choose another with --job")
    return job


def examine(experiment: Experiment, job: Job, staging: Path) -> Work:
    """Examine and stage the job's robot. :raises SpecError: the robot cannot be trained."""
    staging.mkdir(parents=True, exist_ok=True)
    verdict = preflight.examine([job], staging=staging, processes=1)[job.job_id]
    if verdict.problem is not None:
        raise SpecError(experiment.source, [verdict.problem])
    return Work(
        job=job,
        bundle=verdict.bundle,
        xml=verdict.xml,
        task=verdict.task,
        robot_hash=verdict.robot_hash,
    )
