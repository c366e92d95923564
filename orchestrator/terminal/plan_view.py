"""What ``run --dry-run`` shows: the jobs, and how they would be launched."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.core.job import Job
from orchestrator.core.text import count, cpu_text
from orchestrator.experiment.run_plan import Plan
from orchestrator.jobfile import Experiment
from orchestrator.terminal.output import show_table
from orchestrator.terminal.tables import NONE, Column, number_column


def show(experiment: Experiment, plan: Plan, run_dir: Path) -> None:
    warnings = [Text(f"warning: {warning}", style="yellow") for warning in plan.warnings]
    nodes = plan.backend.facts().get("nodes")
    where = cpu_text(cpu.index for cpu in plan.machine.cpus) if nodes is None else count(len(nodes), "node")
    jobs, lanes = count(len(plan.jobs), "job"), plan.backend.slots.lanes
    heading = f"{experiment.name}: {jobs}, {lanes} at once on {where}, in this order, into {run_dir}"
    notify = [f"notify.{key}: {shlex.join(command)}" for key, command in asdict(experiment.notify).items() if command]
    show_table(_columns(plan.jobs), plan.jobs, above=[*warnings, *plan.choices, *notify, heading, ""])


def _columns(jobs: Sequence[Job]) -> list[Column[Job]]:
    columns: list[Column[Job]] = [
        Column("job", lambda job: job.job_id),
        Column("robot", lambda job: job.xml_source.name if job.xml_source else NONE, rank=1),
        Column("task", lambda job: job.spec.task or job.spec.env or job.spec.entry_point or ""),
        number_column("timesteps", lambda job: f"{job.spec.total_timesteps:,}"),
        number_column("n_envs", lambda job: str(job.spec.n_envs), rank=2),
        number_column("cores", lambda job: str(job.resources.cores)),
        number_column("threads", lambda job: str(job.resources.threads), rank=3),
        number_column("memory", lambda job: f"{job.resources.memory_mib:,} MiB", rank=4),
        number_column("GPUs", lambda job: str(job.resources.gpus), rank=5),
    ]
    if any(job.resources.ranks > 1 for job in jobs):
        columns.insert(5, number_column("ranks", lambda job: str(job.resources.ranks)))
    return columns


def facts(experiment: Experiment, plan: Plan, run_dir: Path) -> dict[str, Any]:
    """The plan as JSON types."""
    return {
        "name": experiment.name,
        "run_dir": str(run_dir),
        "jobs_at_once": plan.backend.slots.lanes,
        **plan.backend.facts(),
        "cpus": [cpu.index for cpu in plan.machine.cpus],
        "warnings": list(plan.warnings),
        "choices": list(plan.choices),
        "notify": {key: list(command) for key, command in asdict(experiment.notify).items() if command},
        "jobs": [_job_facts(job) for job in plan.jobs],
    }


def _job_facts(job: Job) -> dict[str, Any]:
    """A job under the keys of the job file."""
    facts = asdict(job.spec)
    facts[job.spec.algo] = facts.pop("hyperparameters")
    if (interval_s := facts.pop("checkpoint_every_s")) is not None:
        facts["checkpoint_every"] = f"{interval_s:g}s"
    facts["distributed"] = {key: facts.pop(key) for key in ("backend", "mode")}
    del facts["ranks"], facts["extended_from"]  # the first is among the resources
    facts["xml"] = None if job.xml_source is None else str(job.xml_source)
    facts["allow_outside"] = job.allow_outside
    return {**facts, "resources": asdict(job.resources), "max_retries": job.max_retries}
