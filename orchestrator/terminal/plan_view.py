"""What ``run --dry-run`` shows: the jobs, how they would be launched, and what they would be
trained with.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.core import job_parts
from orchestrator.core.feature import owner, problems_of
from orchestrator.core.job import Job
from orchestrator.core.numbers.changing_numbers import changing_numbers
from orchestrator.core.text import count, cpu_text, duration, listed
from orchestrator.experiment.planning.dry_run import DryRun, Prospect
from orchestrator.experiment.resuming.reconcile import by_difference
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.toml_models import FEATURE_TABLES, ResourcesTable, Settings
from orchestrator.supervisor.start_choice import StartChoice
from orchestrator.terminal import output
from orchestrator.terminal.tables import NONE, Column, number_column

SHOWN = 10
"""Sets of hyperparameters or of model edits, and names of jobs, that are listed."""
AFTER_SHOWN = 2
FORKED = "forked from a process that imports their packages once"
EXECED = "started as new Python processes"
LEFT_AS_IT_IS = {
    "SUCCEEDED": "do nothing",
    "PAUSED": "do nothing; `resume` queues it",
    **dict.fromkeys(("FAILED", "CANCELLED"), "do nothing; `retry` queues it"),
}


def show(experiment: Experiment, dry: DryRun, run_dir: Path) -> None:
    plan = dry.plan
    jobs = dry.plan.jobs
    where = _where(dry)
    refusals = _refusals(dry, run_dir)
    launched = sum(prospect.is_launched for prospect in dry.prospects.values())
    number = "none" if refusals or not launched else f"{launched:,}"
    of_which = f", of which {number} would be launched" if refusals or launched < len(jobs) else ""
    source = experiment.job_source
    is_made = source is not None and source.makes_jobs
    what = (
        f"a {source.noun}"
        if source is not None and is_made
        else f"{count(len(jobs), 'job')}{of_which}"
    )
    order = "" if is_made else "in this order, "
    heading = f"{experiment.name}: {what}, {plan.backend.slots.lanes} at once on {where}, {order}into {run_dir}"
    warnings = [
        Text(f"warning: {warning}", style="yellow") for warning in (*plan.warnings, *refusals)
    ]
    restriction = [plan.restriction] if plan.restriction else []
    below = [
        *_hyperparameters(jobs),
        *_changed_robots(jobs),
        *_changes(dry),
        *dry.forecast.lines,
        *_batch_script(dry),
    ]
    above: list[str | Text] = [
        *warnings,
        *restriction,
        *plan.choices,
        *_lines_of_tables(experiment),
        heading,
        *(() if source is None else source.lines(experiment)),
    ]
    above += _starts(dry.starts)
    if is_made:
        output.show(output.console(), *above, *dry.forecast.lines, *_batch_script(dry))
    else:
        output.show_table(_columns(dry), jobs, above=[*above, ""], below=below)


def _lines_of_tables(experiment: Experiment) -> list[str]:
    """What the tables of features mean."""
    lines: list[str] = []
    for name, meaning in experiment.tables.items():
        with _problems_of_table(name):
            lines += [str(line) for line in FEATURE_TABLES[name].lines(meaning)]
    return lines


def _facts_of_tables(experiment: Experiment) -> dict[str, Any]:
    """The same as JSON types."""
    facts: dict[str, Any] = {}
    for name, meaning in experiment.tables.items():
        facts_of = FEATURE_TABLES[name].facts
        if facts_of is not None:
            with _problems_of_table(name):
                facts[name] = json.loads(json.dumps(facts_of(meaning)))
    return facts


def _problems_of_table(name: str) -> contextlib.AbstractContextManager[None]:
    return problems_of(owner("job_file", name), f"does not show what [{name}] means")


def _starts(starts: Mapping[str, StartChoice]) -> list[str]:
    """How workers would be started, and why."""
    ways = Counter((choice.is_forked, choice.why) for choice in starts.values())
    texts = [
        f"{count(number, 'worker')} {FORKED if is_forked else EXECED} ({why})"
        for (is_forked, why), number in ways.most_common()
    ]
    return [f"start: {'; '.join(texts)}"] if texts else []


def _where(dry: DryRun) -> str:
    match dry.plan.backend.facts():
        case {"nodes": nodes}:
            return count(len(nodes), "node")
        case {"pilots": pilots}:
            return count(pilots, "pilot")
        case _:
            return cpu_text(cpu.index for cpu in dry.plan.machine.cpus)


def _batch_script(dry: DryRun) -> list[str]:
    """What would be submitted to the cluster."""
    script = dry.plan.backend.facts().get("script")
    return (
        [] if script is None else ["", "Batch script of the pilots:", *script.rstrip().splitlines()]
    )


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
    elif refused := [
        job_id for job_id, prospect in dry.prospects.items() if prospect.action == "refuse"
    ]:
        advice = "--on-change says what to do with them"
        lines.append(
            f"this run would be refused: {listed(refused, SHOWN)} declared differently now; {advice}"
        )
    return lines


def _changes(dry: DryRun) -> list[str]:
    changed = {
        job_id: prospect.changes for job_id, prospect in dry.prospects.items() if prospect.changes
    }
    lines = ["", "Declared differently now:", *by_difference(changed)] if changed else []
    if dry.undeclared:
        lines += [
            "",
            f"No longer in the job file, and not resumed: {listed(dry.undeclared, SHOWN)}",
        ]
    return lines


def _hyperparameters(jobs: Sequence[Job]) -> list[str]:
    """What differs from the defaults of the jobs' algorithms."""
    heading = "Hyperparameters that differ from Stable-Baselines3's defaults (--json shows all):"
    return ["", heading, *_by_values(jobs, _set_values)]


def _changed_robots(jobs: Sequence[Job]) -> list[str]:
    """Changes to the robots, what their episodes draw, and grids of evaluation, where any job has
    some.
    """
    shown: list[str] = []
    if any(job.spec.model_edits for job in jobs):
        shown += [
            "",
            "Model edits:",
            *_by_values(jobs, lambda job: _assignments(job.spec.model_edits)),
        ]
    if any(job.spec.randomize for job in jobs):
        shown += [
            "",
            "Drawn anew for each episode:",
            *_by_values(jobs, lambda job: _assignments(job.spec.randomize)),
        ]
    if any(job.spec.evaluate for job in jobs):
        shown += [
            "",
            "Evaluated at each combination of:",
            *_by_values(jobs, lambda job: _assignments(job.spec.evaluate)),
        ]
    if any(map(_changing_options, jobs)):
        shown += [
            "",
            "Changing over the training:",
            *_by_values(jobs, lambda job: _assignments(_changing_options(job))),
        ]
    return shown


def _changing_options(job: Job) -> dict[str, Any]:
    """The options of its task that change over the training, and what features do in it."""
    changing = {
        f"task_options.{name}": text for name, text in changing_numbers(job.spec.task_options)
    }
    return changing | job_parts.under_keys(job_parts.in_training(job.spec.parts))


def _by_values(jobs: Sequence[Job], values_of: Callable[[Job], str]) -> list[str]:
    """Values, once for all jobs that have the same."""
    with_same: dict[str, list[str]] = {}
    for job in jobs:
        with_same.setdefault(values_of(job), []).append(job.job_id)
    lines = [
        f"  {'all jobs' if len(with_same) == 1 else listed(names, 3)}: {values or 'none'}"
        for values, names in with_same.items()
    ]
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def _set_values(job: Job) -> str:
    spec = job.spec
    defaults = DEFAULTS[job.spec.algo]
    values = {
        f"{spec.algo}.{key}": value
        for key, value in spec.hyperparameters.items()
        if value != defaults[key]
    }
    values |= {f"policy_kwargs.{key}": value for key, value in spec.policy_kwargs.items()}
    return _assignments(values)


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


def _columns(dry: DryRun) -> list[Column[Job]]:
    columns: list[Column[Job]] = [
        Column("job", lambda job: job.job_id),
        Column(
            "robot",
            lambda job: job.xml_source.name if job.xml_source else job.spec.robot_maker or NONE,
            rank=1,
        ),
        Column("task", lambda job: job.spec.task or job.spec.env or job.spec.entry_point or ""),
        number_column("timesteps", lambda job: f"{job.spec.total_timesteps:,}"),
        number_column("n_envs", lambda job: str(job.spec.n_envs), rank=2),
        number_column("cores", lambda job: str(job.resources.cores), rank=2),
        number_column("threads", lambda job: str(job.resources.threads), rank=3),
        number_column("memory", lambda job: f"{job.resources.memory_mib:,} MiB", rank=4),
        number_column("GPUs", lambda job: str(job.resources.gpus), rank=5),
    ]
    defaults = ResourcesTable()
    resources = [job.resources for job in dry.plan.jobs]
    if any(one.nice for one in resources):
        columns.append(number_column("nice", lambda job: str(job.resources.nice), rank=3))
    if any(one.timeout_s != defaults.timeout for one in resources):
        columns.append(
            number_column("timeout", lambda job: duration(job.resources.timeout_s), rank=3)
        )
    if any(one.min_free_disk_mib != defaults.min_free_disk for one in resources):
        columns.append(
            number_column(
                "free disk", lambda job: f"{job.resources.min_free_disk_mib:,} MiB", rank=4
            )
        )
    if any(job.spec.checkpoint_every != Settings().checkpoint_every for job in dry.plan.jobs):
        columns.append(number_column("checkpoint every", _checkpoint_every, rank=4))
    if any(job.resources.ranks > 1 for job in dry.plan.jobs):
        columns.insert(5, number_column("ranks", lambda job: str(job.resources.ranks)))
    if any(job.spec.after for job in dry.plan.jobs):
        columns.insert(2, Column("after", lambda job: listed(job.spec.after, AFTER_SHOWN) or NONE))
    if any(
        prospect.state is not None or prospect.action == "none"
        for prospect in dry.prospects.values()
    ):
        columns[1:1] = [
            Column("state", lambda job: dry.prospects[job.job_id].state or "new"),
            Column("this run would", lambda job: _prospect(dry.prospects[job.job_id])),
        ]
    return columns


def _checkpoint_every(job: Job) -> str:
    steps = job.spec.checkpoint_every
    return duration(job.spec.checkpoint_every_s) if steps is None else f"{steps:,}"


def _prospect(prospect: Prospect) -> str:
    match prospect.action:
        case "start":
            return "start it"
        case "resume":
            at = (
                f"at {prospect.env_steps:,}" if prospect.env_steps else "at 0: it has no checkpoint"
            )
            return f"resume it {at}"
        case "extend":
            return f"train it further, from {prospect.env_steps:,}"
        case "restart":
            return "restart it: it has changed"
        case "refuse":
            return "be refused: it has changed"
        case "none":
            return LEFT_AS_IT_IS.get(prospect.state or "", "not train it: it is invalid")


def facts(experiment: Experiment, dry: DryRun, run_dir: Path) -> dict[str, Any]:
    """The plan as JSON types. Features add facts that the program itself does not have."""
    plan = dry.plan
    added = {**_facts_of_tables(experiment), **dry.forecast.facts}
    own = {
        "name": experiment.name,
        "run_dir": str(run_dir),
        "jobs_at_once": plan.backend.slots.lanes,
        **plan.backend.facts(),
        "cpus": [cpu.index for cpu in plan.machine.cpus],
        "warnings": [*plan.warnings, *_refusals(dry, run_dir)],
        "restriction": plan.restriction or None,
        "choices": list(plan.choices),
        "jobs": [
            _job_facts(job, dry.prospects[job.job_id], dry.starts.get(job.job_id))
            for job in plan.jobs
        ],
        "undeclared": list(dry.undeclared),
    }
    return own | {key: fact for key, fact in added.items() if key not in own}


def _job_facts(job: Job, prospect: Prospect, start: StartChoice | None) -> dict[str, Any]:
    """A job under the keys of the job file, with all of its hyperparameters, and what would be done
    with it.
    """
    facts = job.spec.flat()
    facts[job.spec.algo] = facts["hyperparameters"]
    facts["hyperparameters"] = {**DEFAULTS[job.spec.algo], **facts["hyperparameters"]}
    if (interval_s := facts.pop("checkpoint_every_s")) is not None:
        facts["checkpoint_every"] = f"{interval_s:g}s"
    facts["distributed"] = {key: facts.pop(key) for key in ("backend", "mode")}
    del facts["ranks"], facts["extended_from"]  # the first is among the resources
    facts["xml"] = None if job.xml_source is None else str(job.xml_source)
    facts["allow_outside"] = job.allow_outside
    planned: dict[str, Any] = {
        "state": prospect.state,
        "action": prospect.action,
        "changes": list(prospect.changes),
    }
    planned["start"] = None if start is None else "fork" if start.is_forked else "exec"
    planned["why_start"] = None if start is None else start.why
    planned["resumes_from"] = (
        prospect.env_steps if prospect.action in ("resume", "extend") else None
    )
    return {**facts, "resources": asdict(job.resources), "max_retries": job.max_retries, **planned}
