"""What ``run --dry-run`` shows: the jobs, how they would be launched, and what they would be
trained with.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from orchestrator.client.dry_run import DryRun
from orchestrator.core import job_parts
from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.job import Cause, Failed, Job
from orchestrator.core.numbers.changing_numbers import changing_numbers
from orchestrator.core.numbers.evaluation_grid import number_of_points
from orchestrator.core.text import count, cpu_text, duration, listed
from orchestrator.executors.start_choice import StartChoice
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.toml_models import FEATURE_TABLES, ResourcesTable, Settings
from orchestrator.server.decide import Fate
from orchestrator.server.differences import by_difference
from orchestrator.terminal import output

SHOWN = 10
"""Sets of hyperparameters or of model edits, and names of jobs, that are listed."""
AFTER_SHOWN = 2
FORKED = "forked from a process that imports their packages once"
EXECED = "started as new Python processes"
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
    above += [*_starts(dry.starts), *_evaluation(dry)]
    below = [*dry.forecast.lines, *_batch_script(dry)]
    if experiment.makes_jobs:
        output.show(output.console(), *above, *below)
        return
    jobs = dry.jobs
    about_jobs = [*_hyperparameters(jobs), *_changed_robots(jobs), *_changes(dry)]
    output.show_table(_columns(dry), jobs, above=[*above, ""], below=[*about_jobs, *below])


def _heading(experiment: Experiment, dry: DryRun, run_dir: Path, *, is_refused: bool) -> str:
    """What would be trained, how many jobs at once, where, and into which directory."""
    if (maker := experiment.job_maker) is not None:
        what = f"a {maker.noun}"
        order = ""
    else:
        what = _number_of_jobs(dry, is_refused=is_refused)
        order = "in this order, "
    where = f"{dry.jobs_at_once} at once on {_where(dry)}"
    return f"{experiment.name}: {what}, {where}, {order}into {run_dir}"


def _number_of_jobs(dry: DryRun, *, is_refused: bool) -> str:
    """How many jobs there are and, if not all of them, how many would be launched."""
    jobs = dry.jobs
    text = count(len(jobs), "job")
    launched = sum(fate.is_launched for fate in dry.fates.values())
    if launched == len(jobs) and not is_refused:
        return text
    if launched == 0 or is_refused:
        return f"{text}, of which none would be launched"
    return f"{text}, of which {launched:,} would be launched"


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


def _starts(starts: Mapping[str, StartChoice]) -> list[str]:
    """How workers would be started, and why."""
    ways = Counter((choice.is_forked, choice.why) for choice in starts.values())
    texts = [
        f"{count(number, 'worker')} {FORKED if is_forked else EXECED} ({why})"
        for (is_forked, why), number in ways.most_common()
    ]
    return [f"start: {'; '.join(texts)}"] if texts else []


def _evaluation(dry: DryRun) -> list[str]:
    """Say which share of the env_steps is evaluation, for the job where it is largest."""
    found: list[tuple[float, str]] = []
    for job in dry.jobs:
        spec = job.spec
        longest = dry.verdicts[job.job_id].episode_steps
        if longest is None:
            continue
        episodes = spec.eval_episodes * (1 + bool(spec.randomize) + number_of_points(spec.evaluate))
        steps = episodes * longest
        text = f"{count(episodes, 'episode')} of at most {longest:,} steps, {job.job_id}"
        found.append((steps / (steps + spec.total_timesteps), text))
    share, text = max(found, default=(0.0, ""))
    return [f"evaluation: at most {share:.0%} of the env_steps of a job ({text})"] if share else []


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


def _hyperparameters(jobs: Sequence[Job]) -> list[str]:
    """What differs from the defaults of the jobs' algorithms."""
    heading = "Hyperparameters that differ from Stable-Baselines3's defaults (--json shows all):"
    return ["", heading, *_by_values({job.job_id: _set_values(job) for job in jobs})]


def _changed_robots(jobs: Sequence[Job]) -> list[str]:
    """Changes to the robots, what their episodes draw, and grids of evaluation, where any job has
    some.
    """
    lines: list[str] = []
    for heading, changes_of in (
        ("Model edits:", lambda job: job.spec.model_edits),
        ("Drawn anew for each episode:", lambda job: job.spec.randomize),
        ("Evaluated at each combination of:", lambda job: job.spec.evaluate),
        ("Changing over the training:", _changing_options),
    ):
        changes = {job.job_id: changes_of(job) for job in jobs}
        if any(changes.values()):
            lines += ["", heading, *_by_values(changes)]
    return lines


def _changing_options(job: Job) -> dict[str, Any]:
    """The options of its task that change over the training, and what features do in it."""
    changing = {
        f"task_options.{name}": text for name, text in changing_numbers(job.spec.task_options)
    }
    return changing | job_parts.under_keys(job_parts.in_training(job.spec.parts))


def _by_values(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Values, once for all jobs that have the same.

    :param values: of each job, by its name.
    """
    with_same: dict[str, list[str]] = {}
    for job_id, of_job in values.items():
        with_same.setdefault(_assignments(of_job), []).append(job_id)
    lines = [
        f"  {'all jobs' if len(with_same) == 1 else listed(names, 3)}: {text or 'none'}"
        for text, names in with_same.items()
    ]
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


def _set_values(job: Job) -> dict[str, Any]:
    """The hyperparameters of a job that are not the defaults of its algorithm, by dotted key."""
    spec = job.spec
    defaults = DEFAULTS.get(spec.algo, {})
    values = {
        f"{spec.algo_table}.{key}": value
        for key, value in spec.hyperparameters.items()
        if key not in defaults or value != defaults[key]
    }
    return values | {f"policy_kwargs.{key}": value for key, value in spec.policy_kwargs.items()}


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())


def _columns(dry: DryRun) -> list[Column[Job]]:
    """In the order in which they stand. Some are there only where a job differs from the
    default.
    """
    jobs = dry.jobs
    resources = [job.resources for job in jobs]
    defaults = ResourcesTable()
    columns: list[Column[Job]] = [Column("job", lambda job: job.job_id)]
    if any(fate.shown_state or fate.action == "none" for fate in dry.fates.values()):
        columns += [
            Column("state", lambda job: dry.fates[job.job_id].shown_state or "new"),
            Column(
                "this run would",
                lambda job: _deed(dry.fates[job.job_id], dry.resumes_from.get(job.job_id, 0)),
            ),
        ]
    columns.append(Column("robot", _robot, rank=1))
    if any(job.spec.after for job in jobs):
        columns.append(Column("after", lambda job: listed(job.spec.after, AFTER_SHOWN) or NONE))
    columns += [
        Column("task", lambda job: job.spec.task or job.spec.env or job.spec.entry_point or ""),
        number_column("timesteps", lambda job: f"{job.spec.total_timesteps:,}"),
        number_column("n_envs", lambda job: str(job.spec.n_envs), rank=2),
    ]
    if any(one.ranks > 1 for one in resources):
        columns.append(number_column("ranks", lambda job: str(job.resources.ranks)))
    columns += [
        number_column("cores", lambda job: str(job.resources.cores), rank=2),
        number_column("threads", lambda job: str(job.resources.threads), rank=3),
        number_column("memory", lambda job: f"{job.resources.memory_mib:,} MiB", rank=4),
        number_column("GPUs", lambda job: str(job.resources.gpus), rank=5),
    ]
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
    if any(job.spec.checkpoint_every != Settings().checkpoint_every for job in jobs):
        columns.append(number_column("checkpoint every", _checkpoint_every, rank=4))
    return columns


def _robot(job: Job) -> str:
    return job.xml_source.name if job.xml_source else job.spec.robot_maker or NONE


def _checkpoint_every(job: Job) -> str:
    steps = job.spec.checkpoint_every
    return duration(job.spec.checkpoint_every_s) if steps is None else f"{steps:,}"


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
