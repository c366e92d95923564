"""What is said of a search while it goes on: one line, and whenever there is a new best trial."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from orchestrator.client.events import News, Note
from orchestrator.client.run_watch import LiveSection, RunWatch
from orchestrator.core.errors import LedgerError, LedgerUnavailableError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, decimal, duration, joined
from orchestrator.experiment import run_directory
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.features.search.history import History, Trial, commonest, costs
from orchestrator.features.search.point_text import exact_point_text
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import (
    TrialReader,
    failed_further_seeds,
    lineage_env_steps,
)
from orchestrator.ledger import Ledger

FAILURES_READ = 100
"""So many of the last failed trials are looked at for their commonest reason."""
LONGEST_REASON = 300
"""Characters of a reason."""
LONGEST_EXAMPLE = 100
"""Characters of what is wrong with a point, in the line of the search."""


@dataclass(slots=True, kw_only=True)
class SearchWatch(RunWatch):
    """Follows the search of a run directory, or the comparison of its jobs at rungs.

    If the ledger, or the declaration of the search, is damaged, its line says so.
    """

    paths: RunPaths
    _line: str = field(default="", init=False)
    """Empty until something is known, and where the job file no longer declares a search."""
    _began_at: float | None = field(default=None, init=False)
    """When the search of the ledger that was read last has begun; None where none has."""
    _reader: TrialReader | None = field(default=None, init=False)
    """None where all that the ledger has of the search is to be read."""
    _leaders: Sequence[Trial] = field(default=(), init=False)
    """The best trials; of several objectives, the Pareto front."""
    _lineages: Mapping[int, int | None] = field(default_factory=dict, init=False)
    """By the numbers of the best trials of a search that inherits: env_steps with those of the
    policies that they started from."""

    def look(self) -> Sequence[News]:
        began_at = self._began_at
        before = self._best
        try:
            self._read()
        except LedgerUnavailableError:
            raise
        except LedgerError as error:
            self._forget()
            if self.paths.ledger.exists():  # otherwise the run directory is being made anew
                self._line = f"search: {error}"
            return ()
        best = self._best
        is_first = began_at is None or began_at != self._began_at
        if is_first or best is None or self._reader is None:
            return ()
        if len(self._reader.objectives) > 1:
            return ()
        if before is not None and before.number == best.number:
            return ()
        return (News(kind="best", message=_news(self._reader, best)),)

    def note(self) -> Note | None:
        return Note(text=self._line, command="best") if self._line else None

    def section(self) -> LiveSection | None:
        if not self._line:
            return None
        if self._reader is None:
            return LiveSection(title="Search", text=self._line)
        from orchestrator.features.search import live_section

        search = self._reader.search
        leaders = self._reader.best(live_section.LEADERS)
        if search is not None and search.start != "nothing":
            self._read_lineages(leaders)
        return live_section.of(self._reader, self._line, leaders, self._lineages)

    def _read_lineages(self, leaders: Sequence[Trial]) -> None:
        try:
            with run_directory.opened_ledger(self.paths, read_only=True, is_sound=True) as ledger:
                self._lineages = lineage_env_steps(ledger, leaders)
        except LedgerUnavailableError:
            raise
        except LedgerError:  # those that were read last are shown
            return

    @property
    def _best(self) -> Trial | None:
        return self._leaders[0] if self._leaders else None

    def _read(self) -> None:
        reader = self._reader or TrialReader.of(self.paths)
        if reader is None:
            self._forget()
            return
        is_known = self._began_at is not None
        with run_directory.opened_ledger(self.paths, read_only=True, is_sound=is_known) as ledger:
            began_at = search_events.began_at(self.paths)
            if not is_known or began_at == self._began_at:
                self._take_in(reader, ledger, began_at)
                return
        # `run --fresh` and a rebuilt ledger put another one there.
        self._forget()
        self._read()

    def _take_in(self, reader: TrialReader, ledger: Ledger, began_at: float | None) -> None:
        self._reader = None  # where it is locked midway, it is read from its beginning
        reader.update(ledger)
        self._began_at = began_at
        if began_at is not None:
            self._reader = reader
        self._leaders = reader.front
        is_shown = began_at is not None and not reader.history.is_withdrawn
        if not is_shown and not _why_stopped(self.paths):
            self._line = ""
            return
        self._line = status_line(reader, self._leaders)

    def _forget(self) -> None:
        self._began_at = None
        self._reader = None
        self._leaders = ()
        self._lineages = {}
        self._line = ""


def status_line(reader: TrialReader, leaders: Sequence[Trial]) -> str:
    """How far it is, why trials have failed, and why the search has stopped, if it has.

    :param leaders: the best trial; of several objectives, the Pareto front; none before one has
        finished.
    """
    is_search = reader.search is not None
    is_fruitless = is_search and not leaders and reader.history.is_over
    parts = _progress(reader)
    if is_search and leaders:
        parts.append(_best_so_far(reader, leaders))
        if reader.history.is_over:
            parts += _judged(reader)
    parts += _further_seeds(reader)
    if reader.failed:
        # Without a value the reason follows in a sentence of its own.
        parts.append(f"{reader.failed:,} failed{'' if is_fruitless else f' ({_failure(reader)})'}")
    waiting = len(reader.waiting)
    if waiting:
        parts.append(f"{waiting:,} {'waits' if waiting == 1 else 'wait'} at a rung")
    without = reader.history.without_value_at_rung
    if without and reader.scheduler is not None:
        compared = reader.scheduler.shown
        parts.append(f"no {compared} at a rung {count(without, 'time')} (counts as the worst)")
    if saved := reader.saved_share:
        parts.append(
            f"{saved:.0%} of the env_steps of training the finished and the waiting ones to the end saved"
        )
    line = f"{'search' if is_search else 'rungs'}: {' · '.join(parts)}"
    if stopped := _why_stopped(reader.paths):
        advice = "Correct the cause; the next run goes on with the same next trial"
        return f"{line}. The search has stopped: {stopped}. {advice}"
    return f"{line}. {_without_value(reader)}" if is_fruitless else line


def _why_stopped(paths: RunPaths) -> str:
    try:
        return read_regular(SearchPaths(paths.root).stopped).decode(errors="replace")
    except (OSError, ValueError):  # it has not stopped
        return ""


def _failure(reader: TrialReader) -> str:
    """Why trials have failed; of several, how many of the last ones have the commonest reason."""
    common = _common_failure(_last_failed(reader))
    if reader.failed == 1:
        return common.example
    return f"{common.times:,} of them as {common.example}"


class _CommonFailure(NamedTuple):
    example: str
    """The first trial that has the commonest reason, with that."""
    times: int
    """How many trials have it."""


def _common_failure(failed: Sequence[Trial]) -> _CommonFailure:
    common = commonest([trial.why for trial in failed])
    return _CommonFailure(_with_reason(failed[common.place]), common.times)


def _with_reason(trial: Trial) -> str:
    """A trial that has failed, with its reason, on one line."""
    why = " ".join(trial.why.split())
    dots = "…" if len(why) > LONGEST_REASON else ""
    return f"trial {trial.number}: {why[:LONGEST_REASON]}{dots}"


def _last_failed(reader: TrialReader) -> list[Trial]:
    """The last ones of the search first, without those that repeat one."""
    failed = (trial for trial in reversed(reader.history.failed.values()) if trial.is_of_search)
    return list(islice(failed, FAILURES_READ))


def _further_seeds(reader: TrialReader) -> list[str]:
    """How many further seeds trials have had, and why one of them has failed."""
    further = reader.history.further
    if not further:
        return []
    text = count(len(further), "further seed")
    failed = failed_further_seeds(reader.history.asked)
    if failed:
        text += f", {len(failed):,} failed ({_why_seed_failed(failed[-1])})"
    return [text]


def _why_seed_failed(seed: Trial) -> str:
    return _with_reason(replace(seed, number=seed.reevaluates or 0))


def _without_value(reader: TrialReader) -> str:
    """What to do about a search that has ended without a best trial."""
    why = ""
    if last := _last_failed(reader):
        why = f" ({_common_failure(last).example})"
    what = f"No trial has a value of {joined(reader.objectives)}{why}"
    has_failed_jobs = any(one.failed_jobs for one in reader.history.failed.values())
    retry = "`retry` trains failed jobs again, and " if has_failed_jobs else ""
    return f"{what}. Correct the cause; then {retry}`run --fresh` starts over with another job file"


def _judged(reader: TrialReader) -> list[str]:
    """What the best has come to where it was trained again, beside the unchanged job."""
    again = reader.repeated
    best = next((trial for trial in reader.best(1) if trial.number in again), None)
    values = None if best is None else again[best.number].values
    if best is None or not values or len(reader.objectives) > 1:
        return []
    text = f"trained again: {decimal(values[0], 1)} (trial {best.number})"
    reference = reader.reference
    if reference is not None and reference.values:
        text += f", the unchanged job {decimal(reference.values[0], 1)}"
    return [text]


def _best_so_far(reader: TrialReader, leaders: Sequence[Trial]) -> str:
    """The best value of each objective, with its trial."""
    bests = []
    for place, name in enumerate(reader.objectives):
        of_objective = [(costs(one, reader.directions)[place], one.number) for one in leaders]
        trial = leaders[of_objective.index(min(of_objective))]
        assert trial.values, "the best trial has finished"
        bests.append(f"{name} {decimal(trial.values[place], 1)} (trial {trial.number})")
    if len(bests) == 1:
        return f"best {bests[0]}"
    return f"Pareto front of {count(len(leaders), 'trial')}, best {', '.join(bests)}"


def _progress(reader: TrialReader) -> list[str]:
    """How many trials there are, and how much of its budget the search has used."""
    search = reader.search
    asked = len(reader.asked)
    if search is None:
        return [count(asked, "trial")]
    parts = [
        f"{asked:,} of {count(search.trials, 'trial')}" if search.trials else count(asked, "trial")
    ]
    start = reader.history.start
    if start is not None and not start.is_over:
        parts.append("the unchanged job, from which all start, is trained first")
    if reader.history.rejected:
        parts.append(_rejected(search, reader.history))
    if search.max_env_steps:
        parts.append(f"{reader.env_steps:,} of {search.max_env_steps:,} env_steps")
    if search.max_time_s:
        parts.append(f"{duration(reader.history.elapsed_s)} of {duration(search.max_time_s)}")
    return parts


def _rejected(search: SearchSpec, history: History) -> str:
    """How many points were not trained, and what is wrong with the last of them."""
    text = count(history.rejected, "point was refused", "points were refused")
    if search.constraints:
        points = count(history.rejected, "point violates", "points violate")
        text = f"{points} the constraints"
    why = textwrap.shorten(history.rejected_why, LONGEST_EXAMPLE, placeholder=" …")
    return f"{text} (the last: {why})" if why else text


def _news(reader: TrialReader, best: Trial) -> str:
    named = zip(reader.objectives, best.values or (), strict=False)
    values = ", ".join(f"{name} {decimal(value, 2)}" for name, value in named)
    belief = reader.believed.get(best.number)
    believed = "" if belief is None else f", believed {belief}"
    return f"new best: trial {best.number}, {values}{believed} ({exact_point_text(best.point)})"
