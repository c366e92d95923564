"""What ``run --dry-run`` shows: the jobs, how they would be launched, and what they would be
trained with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.client.dry_run import DryRun
from orchestrator.core import job_parts
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.job import Cause, Failed, Job
from orchestrator.core.numbers.changing_numbers import changing_numbers
from orchestrator.core.text import count, cpu_text, listed
from orchestrator.executors.start_choice import StartChoice
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.toml_models import FEATURE_TABLES
from orchestrator.server.decide import Fate
from orchestrator.server.differences import by_difference
from orchestrator.terminal import output

SHOWN = 10
"""Sets of hyperparameters or of model edits, and names of jobs, that are listed."""
AFTER_SHOWN = 2
LEFT_AS_IT_IS = {
    "SUCCEEDED": "do nothing",
    "PAUSED": "do nothing; `resume` queues it",
    "FAILED": "do nothing; `retry` queues it",
    "CANCELLED": "do nothing; `retry` queues it",
}


def show(experiment: Experiment, dry: DryRun, run_dir: Path) -> None:
    refusals = _refusals(dry, run_dir)
    above: list[str | Text] = [
        *(Text(f"warning: {warning}", style="yellow") for warning in (*dry.warnings, *refusals)),
        *([dry.restriction] if dry.restriction else []),
        *dry.choices,
        *_lines_of_tables(experiment),
        _heading(experiment, dry, run_dir, is_refused=bool(refusals)),
    ]
    source = experiment.job_source
    if source is not None:
        above += source.lines(experiment)
    below = [*dry.forecast.lines, *_batch_script(dry)]
    if experiment.makes_jobs:
        output.show(output.console(), *above, *below)
        return
    jobs = dry.jobs
    below = [*_settings(jobs), *_changes(dry), *below]
    output.show_table(_columns(dry), jobs, above=[*above, ""], below=below)


def _heading(experiment: Experiment, dry: DryRun, run_dir: Path, *, is_refused: bool) -> str:
    """What would be trained, how many jobs at once, where, and into which directory."""
    where = f"{dry.jobs_at_once} at once on {_where(dry)}"
    if (maker := experiment.job_maker) is not None:
        return f"{experiment.name}: a {maker.noun}, {where}, into {run_dir}"
    what = count(len(dry.jobs), "job")
    launched = sum(fate.is_launched for fate in dry.fates.values())
    if is_refused:
        launched = 0
    if launched < len(dry.jobs):
        what += f", of which {launched:,} would be launched"
    return f"{experiment.name}: {what}, {where}, in this order, into {run_dir}"


def _lines_of_tables(experiment: Experiment) -> list[str]:
    """What the tables of features mean."""
    lines: list[str] = []
    for name, meaning in experiment.tables.items():
        lines += FEATURE_TABLES[name].lines(meaning)
    return lines


def _facts_of_tables(experiment: Experiment) -> dict[str, Any]:
    """The same as JSON types."""
    facts: dict[str, Any] = {}
    for name, meaning in experiment.tables.items():
        facts_of = FEATURE_TABLES[name].facts
        if facts_of is not None:
            facts[name] = facts_of(meaning)
    return facts


def _where(dry: DryRun) -> str:
    """On which machines or CPUs the jobs would run."""
    match dry.executor:
        case {"nodes": nodes}:
            return count(len(nodes), "node")
        case {"pilots": pilots}:
            return count(pilots, "pilot")
        case _:
            return cpu_text(cpu.index for cpu in dry.machine.cpus)


def _batch_script(dry: DryRun) -> list[str]:
    """What would be submitted to the cluster."""
    script = dry.executor.get("script")
    if script is None:
        return []
    return ["", "Batch script of the pilots:", *script.rstrip().splitlines()]


def _refusals(dry: DryRun, run_dir: Path) -> list[str]:
    """Why the run would launch nothing."""
    lines = []
    if dry.holder:
        advice = f"`status {run_dir}` shows its jobs, `stop {run_dir}` ends it"
        lines.append(
            f"this run would be refused while another supervisor holds {run_dir} ({dry.holder}); {advice}"
        )
    if dry.refusal:
        lines.append(f"this run would be refused: {dry.refusal}")
    return lines


def _changes(dry: DryRun) -> list[str]:
    """What is declared differently than in the run directory."""
    changed = {job_id: fate.changes for job_id, fate in dry.fates.items() if fate.changes}
    lines: list[str] = []
    if changed and not dry.refusal:  # which names them
        lines = ["", "Declared differently now:", *by_difference(changed)]
    if dry.undeclared:
        lines += [
            "",
            f"No longer in the job file, and not resumed: {listed(dry.undeclared, SHOWN)}",
        ]
    return lines


def _settings(jobs: Sequence[Job]) -> list[str]:
    """What differs from the defaults, once for all jobs that have the same."""
    with_same: dict[str, list[str]] = {}
    for job in jobs:
        texts = [f"{key} = {json.dumps(value)}" for key, value in _set_values(job).items()]
        with_same.setdefault(", ".join(texts) or "none", []).append(job.job_id)
    lines = [
        f"  {'all jobs' if len(with_same) == 1 else listed(job_ids, 3)}: {text}"
        for text, job_ids in with_same.items()
    ]
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    heading = "Settings that differ from Stable-Baselines3's defaults (--json shows all):"
    return ["", heading, *lines[:SHOWN], *more]


def _set_values(job: Job) -> dict[str, Any]:
    """The hyperparameters of a job that are not the defaults of its algorithm, and what changes its
    robot and its training, by dotted key.
    """
    spec = job.spec
    defaults = DEFAULTS.get(spec.algo, {})
    values = {
        f"{spec.algo_table}.{key}": value
        for key, value in spec.hyperparameters.items()
        if key not in defaults or value != defaults[key]
    }
    for table, settings in (
        ("policy_kwargs", spec.policy_kwargs),
        ("model", spec.model_edits),
        ("randomize", spec.randomize),
        ("evaluate", spec.evaluate),
        ("task_options", dict(changing_numbers(spec.task_options))),
    ):
        values |= {f"{table}.{key}": value for key, value in settings.items()}
    return values | job_parts.under_keys(job_parts.in_training(spec.parts))


def _columns(dry: DryRun) -> list[Column[Job]]:
    """In the order in which they stand; those of a rank only where a job has a value."""
    columns: list[Column[Job]] = [Column("job", lambda job: job.job_id)]
    if any(fate.shown_state or fate.action == "none" for fate in dry.fates.values()):
        columns += [
            Column("state", lambda job: dry.fates[job.job_id].shown_state or "new"),
            Column(
                "this run would",
                lambda job: _deed(dry.fates[job.job_id], dry.resumes_from.get(job.job_id, 0)),
            ),
        ]
    return [
        *columns,
        Column("robot", _robot, rank=1),
        Column("after", lambda job: listed(job.spec.after, AFTER_SHOWN) or NONE, rank=1),
        Column("task", lambda job: job.spec.task or job.spec.env or job.spec.entry_point or ""),
        number_column("timesteps", lambda job: f"{job.spec.total_timesteps:,}"),
        number_column("n_envs", lambda job: str(job.spec.n_envs), rank=2),
        number_column("ranks", lambda job: _unless(1, job.resources.ranks), rank=2),
        number_column("cores", lambda job: str(job.resources.cores), rank=2),
        number_column("threads", lambda job: str(job.resources.threads), rank=3),
        number_column("memory", lambda job: f"{job.resources.memory_mib:,} MiB", rank=4),
        number_column("GPUs", lambda job: _unless(0, job.resources.gpus), rank=5),
    ]


def _unless(usual: int, number: float) -> str:
    return NONE if number == usual else f"{number:g}"


def _robot(job: Job) -> str:
    return job.xml_source.name if job.xml_source else job.spec.robot_maker or NONE


def _deed(fate: Fate, env_steps: int) -> str:
    """What the run would do with a job.

    :param env_steps: of the checkpoint from which it goes on.
    """
    match fate.action:
        case "start":
            return "start it"
        case "resume" if env_steps:
            return f"resume it at {env_steps:,}"
        case "resume":
            return "resume it at 0: it has no checkpoint"
        case "extend":
            return f"train it further, from {env_steps:,}"
        case "restart" if fate.lacks_room:
            return "set it aside: it has changed, and is too large here"
        case "restart":
            return "restart it: it has changed"
        case "refuse":
            return "be refused: it has changed"
        case "none" if fate.lacks_room:
            return "not train it here: it is too large"
        case "none" if isinstance(fate.state, Failed) and fate.state.cause is Cause.INVALID:
            return "not train it: it is invalid"
        case "none":
            return LEFT_AS_IT_IS[fate.state.name]


def facts(experiment: Experiment, dry: DryRun, run_dir: Path) -> dict[str, Any]:
    """The plan as JSON types."""
    return {
        "name": experiment.name,
        "run_dir": str(run_dir),
        "jobs_at_once": dry.jobs_at_once,
        **dry.executor,
        "cpus": [cpu.index for cpu in dry.machine.cpus],
        "warnings": [*dry.warnings, *_refusals(dry, run_dir)],
        "restriction": dry.restriction or None,
        "choices": list(dry.choices),
        "jobs": [
            _job_facts(
                job,
                dry.fates[job.job_id],
                dry.starts.get(job.job_id),
                dry.resumes_from.get(job.job_id),
            )
            for job in dry.jobs
        ],
        "undeclared": list(dry.undeclared),
        **_facts_of_tables(experiment),
        **dry.forecast.facts,
    }


def _job_facts(
    job: Job, fate: Fate, start: StartChoice | None, resumes_from: int | None
) -> dict[str, Any]:
    """A job under the keys of the job file, with all of its hyperparameters, and what would be done
    with it.
    """
    facts = job.spec.values()
    for name in facts.pop("parts"):
        facts[name] = job_parts.job_parts()[name].table(job.spec.parts[name])
    facts[job.spec.algo_table] = facts["hyperparameters"]
    facts["hyperparameters"] = {**DEFAULTS.get(job.spec.algo, {}), **facts["hyperparameters"]}
    if (interval_s := facts.pop("checkpoint_every_s")) is not None:
        facts["checkpoint_every"] = f"{interval_s:g}s"
    facts["distributed"] = {key: facts.pop(key) for key in ("backend", "mode")}
    del facts["ranks"], facts["extended_from"]  # the first is among the resources
    facts["xml"] = None if job.xml_source is None else str(job.xml_source)
    facts["allow_outside"] = job.allow_outside
    start_way = None
    if start is not None:
        start_way = "fork" if start.is_forked else "exec"
    return {
        **facts,
        "resources": asdict(job.resources),
        "max_retries": job.max_retries,
        "state": fate.shown_state,
        "action": fate.action,
        "changes": list(map(str, fate.changes)),
        "start": start_way,
        "why_start": None if start is None else start.why,
        "resumes_from": resumes_from,
    }
