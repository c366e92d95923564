"""``compare RUN --jobs A,B --race``: two jobs get further seeds until it is decided which is
higher.

The seeds are trained in a run directory beside RUN, of which nothing is changed: an ordinary
experiment, to which each round of the race adds jobs. So nothing is lost when it is killed, and the
same command goes on. What the values say is decided by :mod:`orchestrator.features.compare.sequential`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from orchestrator.analysis.statistics_text import with_interval
from orchestrator.core.errors import UsageError
from orchestrator.core.text import count
from orchestrator.features.compare import (
    contestants,
    race_round,
    race_standing,
)
from orchestrator.features.compare.contestants import Field
from orchestrator.features.compare.paid_otherwise import other_tasks_remarks
from orchestrator.features.compare.race_options import RaceOptions
from orchestrator.features.compare.race_result import RaceResult, noted, numbers, result_of
from orchestrator.features.compare.race_standing import Standing
from orchestrator.features.compare.sequential import LEAST_SEEDS, Look
from orchestrator.keys.names import safe_name
from orchestrator.terminal.run_view import LineReporter


def race(run_dir: Path, names: Sequence[str], by: str | None, options: RaceOptions) -> RaceResult:
    """Race two jobs of a run directory.

    :raises UsageError: they cannot be raced, or further seeds cannot be trained.
    :raises RunInterrupted: it was stopped; the same call goes on.
    :raises DiskFullError, SupervisorError: everything has stopped; the same call goes on.
    """
    field = contestants.read(run_dir, names, by, options.conditions)
    race_dir = _race_dir(field)
    for remark in other_tasks_remarks([field.by], field.settings):
        _tell("warning", remark, options.progress)
    while True:
        standing = race_standing.read(field, race_dir, options.rules)
        look = standing.look()
        if look is not None and look.outcome != "open":
            return noted(result_of(standing, look))
        seeds = standing.next_seeds(race_round.seeds_a_round(field, options.max_parallel))
        if not seeds:
            raise UsageError(
                f"{race_dir}: no seed has a value of both jobs, and the budget of"
                f" {standing.rules.most_seeds} seeds is spent; `status {race_dir}` says why"
            )
        _tell("race", _progress_text(standing, look, seeds), options.progress)
        race_round.train(standing, seeds, options)
        _refuse_standstill(standing, seeds)


def _race_dir(field: Field) -> Path:
    """Beside the run directory: the same for both orders of the jobs."""
    root = field.run_dir if field.run_dir.name not in ("", "..") else field.run_dir.resolve()
    names = "-".join(sorted(one.name for one in field.both))
    return root.parent / safe_name(f"{root.name}-race-{names}")


def _refuse_standstill(before: Standing, seeds: Sequence[int]) -> None:
    """:raises UsageError: the last round has trained nothing, or the next would be in vain."""
    now = race_standing.read(before.field, before.race_dir, before.rules)
    race_dir = now.race_dir
    left = [seed for seed in seeds if not now.has_tried(seed)]
    if left:
        what = count(len(left), "seed is", "seeds are")
        raise UsageError(
            f"{race_dir}: {what} not trained to the end ({numbers(left)}); `status {race_dir}`"
            f" says why, `resume {race_dir}` queues paused jobs. {race_round.go_on()}"
        )
    last = now.tried[-LEAST_SEEDS:]
    for one in now.field.both:
        if len(last) == LEAST_SEEDS and all(now.value(one, seed) is None for seed in last):
            raise UsageError(
                f"{race_dir}: {one.name} has no value of {now.field.by} with any of the last"
                f" {LEAST_SEEDS} seeds ({numbers(last)}), so more would be trained in vain;"
                f" `status {race_dir}` says why, `retry {race_dir}` trains failed jobs again. {race_round.go_on()}"
            )


def _tell(kind: str, text: str, progress: TextIO | None) -> None:
    if progress is not None:
        with contextlib.suppress(OSError):  # nobody reads it
            LineReporter(progress).event(kind, text)


def _progress_text(standing: Standing, look: Look | None, seeds: Sequence[int]) -> str:
    field = standing.field
    what = "nothing is known yet"
    if look is not None:
        difference = with_interval(look.difference)
        what = (
            f"{field.second.name} − {field.first.name} = {difference} ({field.by}) after"
            f" {count(look.difference.n, 'seed')} each: not decided"
        )
    next_ones = count(len(seeds), "seed")
    return f"{what}; {next_ones} of at most {standing.budget} trained next: {numbers(seeds)}"
