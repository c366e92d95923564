"""A round of a race: seeds of both jobs are trained to their end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from orchestrator import api
from orchestrator.core.errors import RunInterrupted, UsageError
from orchestrator.core.front_end import repeat_call
from orchestrator.experiment import session
from orchestrator.experiment.beside_run import BesideRun
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.features.compare import race_notes
from orchestrator.features.compare.contestants import Field
from orchestrator.features.compare.race_options import RaceOptions
from orchestrator.features.compare.race_standing import Standing
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_names import without_seed
from orchestrator.machine import topology
from orchestrator.machine.slots import MaxParallel
from orchestrator.supervisor.events import DetachableReporter, Reporter
from orchestrator.terminal.background_output import in_background
from orchestrator.terminal.run_view import LineReporter

MOST_SEEDS_A_ROUND = 4
"""So many seeds of both are trained between two looks where there are cores for them: more would
often be trained in vain."""


class _NotesRound(BesideRun):
    """Records the budget of a round, and its seeds where they are fresh, before it trains, so that
    one that is killed has declared them.
    """

    def __init__(self, standing: Standing, seeds: Sequence[int]) -> None:
        self._standing = standing
        self._seeds = seeds

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        standing = self._standing
        race_notes.note_budget(standing.race_dir, standing.field.by, standing.budget)
        if standing.field.is_fresh:
            race_notes.note_fresh(standing.race_dir, self._seeds)


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
    experiment = Experiment(
        name=race_dir.name,
        max_parallel=None,
        order="as-listed",
        jobs=tuple(jobs),
        source=f"{race_dir}/experiment.toml",
        text=_job_file(standing.field, race_dir),
        base=race_dir.absolute(),
    )
    run_options = RunOptions(
        run_dir=race_dir, is_listed=True, verdicts=verdicts, max_parallel=options.max_parallel
    )
    try:
        with _reporter(race_dir, options.progress) as reporter:
            finished = session.run(
                experiment,
                run_options,
                reporter,
                beside=[_NotesRound(standing, seeds)],
                ends_process=options.ends_process,
            )
    except KeyboardInterrupt:
        raise _interrupted(race_dir) from None
    if finished.interrupted or finished.signalled:
        raise _interrupted(race_dir)
    if finished.problem is not None:
        problem = finished.problem
        raise UsageError(f"{race_dir}: {problem.what}. {problem.advice} {go_on()}")


def _job_file(field: Field, race_dir: Path) -> bytes:
    """With which `run` ends the seeds that have begun; the jobs are in the ledger."""
    both = ",".join(one.name for one in field.both)
    text = f"# Made by: compare {field.run_dir} --jobs {both} --race. The same command goes on.\n"
    return f"{text}name = {json.dumps(race_dir.name)}\n".encode()


@contextlib.contextmanager
def _reporter(race_dir: Path, progress: TextIO | None) -> Iterator[Reporter]:
    record = run_directory.error_record(race_dir)
    if progress is None:
        yield DetachableReporter(api.WarningReporter(), record)
        return
    with in_background(progress) as out:
        yield DetachableReporter(LineReporter(out), record)


def _interrupted(race_dir: Path) -> RunInterrupted:
    return RunInterrupted(race_dir, f"{race_dir}: the race has stopped. {go_on()}")


def go_on() -> str:
    again = repeat_call()
    return f"{again[0].upper()}{again[1:]} to go on; nothing that was trained is lost."
