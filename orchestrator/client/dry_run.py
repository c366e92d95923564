"""``run --dry-run``: the plan, and what the run would do with every job that the run directory has
already.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from orchestrator.core.errors import ChangedError
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.job import Cancelled, Paused, Pending, Running, State, Succeeded, lacked_room
from orchestrator.core.paths import RunPaths
from orchestrator.executors import start_choice
from orchestrator.executors.start_choice import StartChoice
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.examination import examining_process, side_by_side
from orchestrator.experiment.examination.preflight import JobVerdict
from orchestrator.experiment.planning import run_executor, run_plan
from orchestrator.experiment.planning.run_plan import Plan, RunOptions
from orchestrator.experiment.resuming import extension
from orchestrator.experiment.resuming.declared_changes import (
    OnChange,
    changed_jobs,
    refuse_at_rungs,
    restarted_jobs,
)
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_source import Forecast
from orchestrator.ledger import JobRow, Ledger
from orchestrator.server.entering import has_lost_directory, state_at_start
from orchestrator.server.ledger import Wanted
from orchestrator.server.ledger import wanted as wanted_of
from orchestrator.supervisor import disk_admission, job_directory

Action: TypeAlias = Literal["start", "resume", "restart", "extend", "refuse", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What a run would do with a job."""

    state: str | None
    """The job's state in the run directory; None where it is new there."""
    action: Action
    """``refuse``: nothing is launched, because of this job; ``none``: it is left as it is."""
    env_steps: int = 0
    """Of the checkpoint from which it resumes, or is trained further."""
    changes: Sequence[str] = ()
    """What is declared differently now."""
    lacks_room: bool = False
    """Whether it is not launched, as the machines have too little for it."""

    @property
    def is_launched(self) -> bool:
        is_to_train = self.action in ("start", "resume", "restart", "extend")
        return is_to_train and not self.lacks_room


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    plan: Plan
    """Its executor is closed already."""
    prospects: Mapping[str, Prospect]
    """``job_id`` → its prospect."""
    undeclared: Sequence[str] = ()
    """Jobs of the run directory that the job file does not declare: they are not resumed."""
    holder: str = ""
    """The supervisor that runs now, because of which a run would be refused; empty where there is
    none."""
    refusal: str = ""
    """Why a run would be refused as something else has begun that makes the jobs, or compares them;
    empty otherwise."""
    forecast: Forecast = field(default_factory=Forecast)
    """Of what makes its jobs, from the start or from what has been done so far."""
    starts: Mapping[str, StartChoice] = field(default_factory=dict)
    """``job_id`` → how its worker would be started, of every job that would be launched."""


def dry_run(
    experiment: Experiment,
    options: RunOptions,
    *,
    watch: side_by_side.Watch,
    warm: examining_process.Child | None = None,
) -> DryRun:
    """Plan a run without a run directory, and compare the plan with the one that is there.

    :raises UsageError: where the run would be refused, except because of changed jobs and a
        supervisor that runs.
    """
    options = run_executor.of_unclaimed(options)
    with TemporaryFolder() as staging:
        plan = run_plan.plan(
            experiment, options, Path(staging), check_stop=lambda: None, watch=watch, warm=warm
        )
        plan.executor.close()
    plan = _warned_of_disk(plan, options.run_dir)
    paths = RunPaths(options.run_dir)
    earlier = _earlier(experiment, options, plan, paths)
    forecast = earlier.forecast
    if experiment.job_source is not None:
        measured = experiment.job_source.measured_lines(experiment)
        forecast = dataclasses.replace(forecast, lines=[*measured, *forecast.lines])
    holder = str(run_directory.holder(paths) or "")
    prospects = _prospects(plan, options, earlier, paths, is_held=bool(holder))
    undeclared: list[str] = []
    if not experiment.makes_jobs:
        undeclared = [job_id for job_id in earlier.rows if job_id not in prospects]
    return DryRun(
        plan=plan,
        prospects=prospects,
        undeclared=undeclared,
        holder=holder,
        refusal=earlier.refusal,
        forecast=forecast,
        starts=_starts(plan, prospects),
    )


def _warned_of_disk(plan: Plan, run_dir: Path) -> Plan:
    """``plan``, with a warning where jobs would wait for disk space."""
    asked_mib = max((job.resources.min_free_disk_mib for job in plan.jobs), default=0)
    free_mib = disk_admission.free_mib(run_dir)
    if free_mib is None or free_mib >= asked_mib:
        return plan
    shortage = disk_admission.shortage(run_dir, free_mib, asked_mib)
    warning = f"jobs would wait for disk space: {shortage}"
    return dataclasses.replace(plan, warnings=[*plan.warnings, warning])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """What the run directory has that a run would go on with."""

    rows: Mapping[str, JobRow] = field(default_factory=dict)
    """By ``job_id``, as the run would begin with them."""
    wanted: Mapping[str, Wanted] = field(default_factory=dict)
    """What users want of the jobs."""
    refusal: str = ""
    """As :attr:`DryRun.refusal`."""
    forecast: Forecast = field(default_factory=Forecast)
    """As :attr:`DryRun.forecast`."""


def _earlier(experiment: Experiment, options: RunOptions, plan: Plan, paths: RunPaths) -> _Earlier:
    """What a run would go on with; nothing where it would start over."""
    source = experiment.job_source
    if options.fresh or not paths.ledger.exists():
        return _Earlier(forecast=_forecast(experiment, plan, None))
    with run_directory.reading_ledger(paths) as ledger:
        recorded = {row.job_id: row for row in ledger.jobs()}
        wanted = wanted_of(ledger)
        rows = _rows_at_start(recorded, plan, paths, trains_to_end=source is None)
        if source is None:
            return _Earlier(rows=rows, wanted=wanted)
        try:
            source.refuse_another(experiment, options, plan, ledger)
            refuse_at_rungs(ledger, recorded, plan.jobs, plan.verdicts, paths)
        except ChangedError as error:
            forecast = _forecast(experiment, plan, None)
            return _Earlier(rows=rows, wanted=wanted, refusal=str(error), forecast=forecast)
        return _Earlier(rows=rows, wanted=wanted, forecast=_forecast(experiment, plan, ledger))


def _rows_at_start(
    recorded: Mapping[str, JobRow], plan: Plan, paths: RunPaths, *, trains_to_end: bool
) -> dict[str, JobRow]:
    """Return the rows as a run would begin with them."""
    rows = dict(recorded)
    for job_id, verdict in plan.verdicts.items():
        row = recorded.get(job_id)
        if row is None or not row.attempts:
            continue
        if has_lost_directory(row, verdict, paths):
            del rows[job_id]
        else:
            state, _ = state_at_start(row, verdict, paths, trains_to_end=trains_to_end)
            rows[job_id] = dataclasses.replace(row, state=state)
    return rows


def _forecast(experiment: Experiment, plan: Plan, ledger: Ledger | None) -> Forecast:
    source = experiment.job_source
    return Forecast() if source is None else source.forecast(experiment, plan, ledger)


def _prospects(
    plan: Plan, options: RunOptions, earlier: _Earlier, paths: RunPaths, *, is_held: bool
) -> dict[str, Prospect]:
    """What the run would do with each job of ``plan``. :param is_held: whether a supervisor runs."""
    rows = earlier.rows
    changed = changed_jobs(rows, plan.jobs, plan.verdicts)
    restarted = restarted_jobs(rows, plan.jobs, plan.verdicts)
    refused: Mapping[str, Sequence[str]] = {}
    if earlier.refusal or options.on_change == "refuse":
        refused = changed
    elif options.on_change == "extend":
        refused = extension.obstacles(rows, plan.jobs, plan.verdicts, changed, paths)
    prospects: dict[str, Prospect] = {}
    for job in plan.jobs:
        job_id = job.job_id
        row = rows.get(job_id)
        verdict = plan.verdicts[job_id]
        if row is None or not row.attempts:
            state = None if row is None else row.state
            is_free = earlier.wanted.get(job_id, "run") == "run"
            prospects[job_id] = _prospect_unlaunched(state, verdict, is_free=is_free)
            continue
        changes = refused.get(job_id, changed.get(job_id, ()))
        on_change = options.on_change if changes else None
        if on_change == "restart" and job_id not in restarted:
            on_change = None
        action = _action(row.state, on_change, is_refused=job_id in refused)
        lacks_room = verdict.lacks_room and _waits(row.state, action)
        if lacks_room and action in ("resume", "extend"):
            action = "none"
        goes_on = action in ("resume", "extend")
        has_lost_supervisor = isinstance(row.state, Running) and not is_held
        prospects[job_id] = Prospect(
            state="PENDING" if has_lost_supervisor else row.state.name,
            action=action,
            env_steps=job_directory.checkpointed_steps(paths.job(job_id)) if goes_on else 0,
            changes=changes,
            lacks_room=lacks_room,
        )
    return prospects


def _starts(plan: Plan, prospects: Mapping[str, Prospect]) -> dict[str, StartChoice]:
    """As the run would choose where no job waits for another."""
    launched = [job for job in plan.jobs if prospects[job.job_id].is_launched]
    due = sum(map(start_choice.is_forkable, launched))
    never_forks = plan.executor.never_forks
    return {
        job.job_id: start_choice.choose(job, due=due, never_forks=never_forks) for job in launched
    }


def _action(state: State, on_change: OnChange | None, *, is_refused: bool) -> Action:
    """Return what is done with a job that has been launched.

    :param on_change: None: it goes on as it was.
    """
    if is_refused:
        return "refuse"
    if on_change == "restart":
        return "restart"
    if on_change == "extend" and isinstance(state, Succeeded):
        return "extend"
    return "resume" if isinstance(state, Pending | Running) else "none"


def _waits(state: State, action: Action) -> bool:
    """Whether a job that has been launched would be launched again if there were room."""
    return lacked_room(state) or action in ("resume", "restart", "extend")


def _prospect_unlaunched(state: State | None, verdict: JobVerdict, *, is_free: bool) -> Prospect:
    """A job that was never launched; it starts unless it may not, also where its robot was invalid
    before.

    :param is_free: whether its user does not hold it back.
    """
    may_start = is_free and not isinstance(state, Cancelled | Paused)
    starts = may_start and verdict.problem is None
    return Prospect(
        state=None if state is None else state.name,
        action="start" if starts else "none",
        lacks_room=may_start and verdict.lacks_room,
    )
