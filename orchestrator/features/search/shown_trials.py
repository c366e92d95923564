"""Which trials of a search pages show by themselves, and its archive."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import RunPaths
from orchestrator.features.search.declaration.spec import ArchiveAxis, SearchSpec, sign_of
from orchestrator.features.search.history import Trial, is_measured
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import best, judged_first, repeated_in, with_further_seeds

MOST_REPORTED = 60
"""Trials of each kind that a page shows by themselves."""
_EPSILON = 1e-6
"""A measure on the border of two cells belongs to the upper one, as in the archives of pyribs."""


class ArchiveElite(TypedDict):
    """The best trial of a cell, which is its place on every axis, from 0."""

    cell: Sequence[int]
    trial: int
    value: float


def note(paths: RunPaths, trials: Sequence[Trial], search: SearchSpec) -> None:
    """Write :func:`jobs_to_show` for whoever draws them; without the file nothing is drawn."""
    with contextlib.suppress(OSError):  # the disk is full
        write_whole(
            SearchPaths(paths.root).shown_jobs,
            json.dumps(jobs_to_show(trials, search)) + "\n",
            durable=False,
        )


def jobs_to_show(trials: Sequence[Trial], search: SearchSpec) -> list[str]:
    """The jobs of the trials to show, and of those that repeat them."""
    repeated = repeated_in(trials, search)
    of_search = [trial for trial in trials if trial.is_of_search]
    shown: list[str] = []
    for number in leaders(of_search, search, repeated).shown_trials():
        shown += with_further_seeds(trials[number]).jobs
        if number in repeated:
            shown += repeated[number].jobs
    return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaders:
    """The finished trials of a search in the orders in which pages show them."""

    ranked: Sequence[int] = ()
    """As ``best`` ranks them: by their value, with a race by what is believed of them, or of several
    objectives their Pareto front. Those that were trained again come before the others, by the
    values of that training."""
    best: Sequence[int] = ()
    """All of them, in the same way by the first objective alone."""
    front: Sequence[int] = ()
    """Pareto front of several objectives, by values of the search."""
    archive: Sequence[ArchiveElite] = ()

    def shown_trials(self) -> Collection[int]:
        """Those that are shown by themselves, in that order."""
        elites = [elite["trial"] for elite in self.archive]
        parts = (self.ranked, self.best, self.front, elites)
        return dict.fromkeys(number for part in parts for number in part[:MOST_REPORTED])


def leaders(trials: Iterable[Trial], search: SearchSpec, repeated: Mapping[int, Trial]) -> Leaders:
    """:param trials: all that are searched among.
    :param repeated: as in :attr:`.trials.TrialReader.repeated`.
    """
    finished = [trial for trial in trials if is_measured(trial)]
    front = best(finished, search.directions) if len(search.directions) > 1 else []
    in_order = judged_first(finished, repeated, search.directions, search)
    by_first = judged_first(finished, repeated, search.directions[:1], search)
    return Leaders(
        ranked=[trial.number for trial in in_order],
        best=[trial.number for trial in by_first],
        front=[trial.number for trial in front],
        archive=archive(finished, search),
    )


def archive(trials: Iterable[Trial], search: SearchSpec) -> list[ArchiveElite]:
    """The best of the finished ``trials`` for each cell; of equal ones the earlier. The best cell
    comes first.
    """
    sign = sign_of(search.directions[0])
    known: dict[tuple[int, ...], tuple[float, int]] = {}
    for trial in trials if search.measures else ():
        if trial.values and trial.measures and all(map(math.isfinite, trial.measures)):
            cell = tuple(
                _place(axis, value)
                for axis, value in zip(search.measures, trial.measures, strict=True)
            )
            if cell not in known or sign * trial.values[0] > sign * known[cell][0]:
                known[cell] = trial.values[0], trial.number
    elites = sorted(known.items(), key=lambda item: (-sign * item[1][0], item[0]))
    return [{"cell": cell, "trial": number, "value": value} for cell, (value, number) in elites]


def _place(axis: ArchiveAxis, value: float) -> int:
    """The cell on ``axis``; what is beyond its ends belongs to the cells there."""
    cell = math.floor((axis.cells * (value - axis.low) + _EPSILON) / (axis.high - axis.low))
    return min(max(cell, 0), axis.cells - 1)
