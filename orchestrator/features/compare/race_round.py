"""A round of a race: seeds of both jobs are trained to their end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from orchestrator.client.run_jobs import run_jobs
from orchestrator.core.errors import RunInterrupted, SupervisorError
from orchestrator.core.front_end import repeat_call
from orchestrator.features.compare import race_notes
from orchestrator.features.compare.contestants import Field
from orchestrator.features.compare.race_options import RaceOptions
from orchestrator.features.compare.race_standing import Standing
from orchestrator.jobfile.job_names import without_seed
from orchestrator.machine import topology
from orchestrator.machine.slots import MaxParallel
from orchestrator.server.ledger import EventRow
from orchestrator.server.settings import RunSettings
from orchestrator.terminal.run_view import LineReporter

MOST_SEEDS_A_ROUND = 4
"""So many seeds of both are trained between two looks where there are cores for them: more would
often be trained in vain."""


def seeds_a_round(field: Field, max_parallel: MaxParallel) -> int:
    """How many seeds of both jobs are trained between two looks.

    :param max_parallel: jobs at once, whatever cores each of them has.
    """
    cores_of_job = max(one.template.job.resources.all_cores for one in field.both)
    jobs_at_once = topology.detect().capacity // cores_of_job
    if isinstance(max_parallel, int):
        jobs_at_once = min(jobs_at_once, max_parallel)
    return min(MOST_SEEDS_A_ROUND, max(1, jobs_at_once // 2))


def train(standing: Standing, seeds: Sequence[int], options: RaceOptions) -> None:
    """Train both jobs with ``seeds`` to the end.

    :raises RunInterrupted: it was stopped.
    """
    race_dir = standing.race_dir
    jobs = standing.jobs(seeds)
    of_names = {one.name: one.verdict() for one in standing.field.both}
    verdicts = {job.job_id: of_names[without_seed(job.job_id, job.spec.seed)] for job in jobs}
    settings = RunSettings(
        client_pid=0,
        name=race_dir.name,
        max_parallel=options.max_parallel,
        base=str(race_dir.absolute()),
    )

    def note_round(_: object) -> None:
        """Record the budget of the round, and its seeds if they are fresh, before it trains."""
        race_notes.note_budget(race_dir, standing.field.by, standing.budget)
        if standing.field.is_fresh:
            race_notes.note_fresh(race_dir, seeds)

    def show(event: EventRow) -> None:
        if options.progress is not None and event.kind not in ("answer", "ended", "underway"):
            LineReporter(options.progress).event(event.kind, event.message)

    ended = run_jobs(
        jobs,
        race_dir,
        settings,
        verdicts=verdicts,
        text=_job_file(standing.field, race_dir),
        begun=note_round,
        on_event=show,
    )
    if ended.is_interrupted or ended.exit_code == 130:
        raise RunInterrupted(race_dir, f"{race_dir}: the race has stopped. {go_on()}")
    if ended.message:
        raise SupervisorError(f"{ended.message} {go_on()}")


def _job_file(field: Field, race_dir: Path) -> str:
    """With which `run` ends the seeds that have begun; the jobs are in the ledger."""
    both = ",".join(one.name for one in field.both)
    text = f"# Made by: compare {field.run_dir} --jobs {both} --race. The same command goes on.\n"
    return f"{text}name = {json.dumps(race_dir.name)}\n"


def go_on() -> str:
    again = repeat_call()
    return f"{again[0].upper()}{again[1:]} to go on; nothing that was trained is lost."
