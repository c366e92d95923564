"""What the commands print for people: a plan, the state of a run directory, the end of a run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.core.job import Job
from orchestrator.experiment import control
from orchestrator.experiment.control import Snapshot
from orchestrator.experiment.session import Plan, RunResult
from orchestrator.jobfile import Experiment
from orchestrator.ledger.summary import learner_summary
from orchestrator.terminal import tables
from orchestrator.terminal.tables import Column

PIPE_WIDTH = 10_000
WATCH_EVERY_S = 1.0


def console() -> Console:
    """For standard output; in a pipe as wide as any table, since the reader may be a program."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def show(on: Console, *parts: Text | str | Any) -> None:
    """Print, in a pipe without the blanks that fill a table's last column."""
    if on.is_terminal:
        on.print(*parts, sep="\n")
        return
    with on.capture() as capture:
        on.print(*parts, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def show_end(finished: RunResult) -> None:
    on = console()
    root = finished.paths.root
    show(on, "", tables.summary(finished.rows, on.width, alive=False), *_remarks(finished.rows))
    show(on, "", f"{root}: summary.csv, and in jobs/ of every job model.zip, progress.csv, timings.csv and its logs")
    if finished.interrupted and finished.exit_code != 0:
        show(on, Text("Stopped. The same command goes on where it was.", style="yellow"))
    elif finished.exit_code:
        text = f"Not every job succeeded: `logs {root} JOB` shows more, `retry {root}` puts them back."
        show(on, Text(text, style="red"))


def show_plan(experiment: Experiment, plan: Plan, run_dir: Path) -> None:
    from orchestrator.machine.doctor_checks import cpu_text

    on = console()
    for warning in plan.warnings:
        show(on, Text(f"warning: {warning}", style="yellow"))
    for choice in plan.choices:
        show(on, choice)
    jobs = plan.jobs
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    nodes = plan.backend.facts().get("nodes")
    where = cpu_text(cpu.index for cpu in plan.machine.cpus) if nodes is None else f"{len(nodes)} nodes"
    lanes = plan.backend.slots.lanes
    show(on, f"{experiment.name}: {count}, {lanes} at once on {where}, in this order, into {run_dir}", "")
    columns = [
        Column(name="job", cells=[job.job_id for job in jobs]),
        Column(name="robot", cells=[job.xml_source.name if job.xml_source else "–" for job in jobs], rank=1),
        Column(name="task", cells=[job.spec.task or job.spec.env or job.spec.entry_point or "" for job in jobs]),
        Column(name="timesteps", cells=[f"{job.spec.total_timesteps:,}" for job in jobs], justify="right"),
        Column(name="n_envs", cells=[str(job.spec.n_envs) for job in jobs], justify="right", rank=2),
        *tables.ranks([job.resources.ranks for job in jobs]),
        Column(name="cores", cells=[str(job.resources.cores) for job in jobs], justify="right"),
        Column(name="threads", cells=[str(job.resources.threads) for job in jobs], justify="right", rank=3),
        Column(name="memory", cells=[f"{job.resources.memory_mib:,} MiB" for job in jobs], justify="right", rank=4),
        Column(name="GPUs", cells=[str(job.resources.gpus) for job in jobs], justify="right", rank=5),
    ]
    show(on, tables.table(columns, on.width))


def plan_facts(experiment: Experiment, plan: Plan, run_dir: Path) -> dict[str, Any]:
    """The same for programs."""
    return {
        "name": experiment.name,
        "run_dir": str(run_dir),
        "jobs_at_once": plan.backend.slots.lanes,
        **plan.backend.facts(),
        "cpus": [cpu.index for cpu in plan.machine.cpus],
        "warnings": list(plan.warnings),
        "choices": list(plan.choices),
        "jobs": [_job_facts(job) for job in plan.jobs],
    }


def _job_facts(job: Job) -> dict[str, Any]:
    """Under the job file's own words."""
    facts = asdict(job.spec)
    facts[job.spec.algo] = facts.pop("hyperparameters")
    facts["distributed"] = {key: facts.pop(key) for key in ("backend", "mode")}
    del facts["ranks"]  # is among the resources
    facts["xml"] = None if job.xml_source is None else str(job.xml_source)
    return {**facts, "resources": asdict(job.resources), "max_retries": job.max_retries}


def show_status(run_dir: Path, *, watch: bool) -> None:
    on = console()
    snapshot = control.status(run_dir)
    if watch and on.is_terminal:
        with Live(console=on, auto_refresh=False, transient=True) as live:
            while not snapshot.over:
                live.update(_status(on, snapshot), refresh=True)
                time.sleep(WATCH_EVERY_S)
                snapshot = control.status(run_dir)
    show(on, _status(on, snapshot))
    while watch and not snapshot.over:
        time.sleep(WATCH_EVERY_S)
        snapshot = control.status(run_dir)
        show(on, "", _status(on, snapshot))


def _status(on: Console, snapshot: Snapshot) -> Group:
    counts = Counter(row["state"] for row in snapshot.rows)
    told = ", ".join(f"{count} {state.lower()}" for state, count in counts.items()) or "examining the robots"
    who = f"supervised by {snapshot.holder}" if snapshot.holder else "no supervisor at work"
    table = tables.summary(snapshot.rows, on.width, alive=snapshot.holder is not None)
    return Group(f"{snapshot.paths.root}: {told}; {who}", "", table, *_remarks(snapshot.rows))


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Below the table: the learners, and why jobs failed."""
    learners, failed = learner_summary(rows), tables.reasons(rows)
    said = [Text(), Text(f"learner: {learners}", style="dim")] if learners else []
    return said + [Text()] * bool(failed) + [Text.assemble((job, "bold red"), f"  {why}") for job, why in failed]
