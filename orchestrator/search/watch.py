"""What is said of a search while it goes on: one line, and whenever there is a new best trial."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from orchestrator.core.errors import LedgerBusyError, LedgerError, OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.regular_files import read_regular
from orchestrator.core.text import count, duration, joined
from orchestrator.experiment import run_directory
from orchestrator.experiment.control import Snapshot
from orchestrator.search.history import Trial, commonest
from orchestrator.search.trials import TrialReader
from orchestrator.supervisor.events import Reporter, View

LOOK_EVERY_S = 1.0
LOOKING_SHARE = 0.005
"""Largest share of time for reading the ledger."""
FAILURES_READ = 100
"""So many of the last failed trials are looked at for their commonest reason."""
LONGEST_REASON = 300
"""Characters of a reason."""


@dataclass(slots=True, kw_only=True)
class SearchWatch:
    """Follows the search of a run directory."""

    paths: RunPaths
    line: str = field(default="", init=False)
    """Empty until something is known."""
    _reader: TrialReader | None = field(default=None, init=False)
    _best: Trial | None = field(default=None, init=False)
    _front: int = field(default=0, init=False)
    """Number of trials of the Pareto front, of several objectives."""

    def look(self) -> str:
        """Read on. Returns a message if there is a new best trial since the last look; otherwise
        nothing.

        If the ledger, or the declaration of the search, is damaged, :attr:`line` says so.

        :raises OrchestratorError: the ledger cannot be read now.
        """
        is_first = self._reader is None
        try:
            has_changed = self._read()
        except LedgerBusyError:
            raise
        except LedgerError as error:
            self._reader, self.line = None, f"search: {error}"
            return ""
        if self._reader is None:
            return ""
        before = self._best
        if has_changed or not self.line:
            front = self._reader.front
            self._best, self._front = (front[0] if front else None), len(front)
        self.line = status_line(self._reader, self._best, self._front)
        is_new = self._best is not None and (before is None or before.number != self._best.number)
        is_new = is_new and len(self._reader.objectives) == 1
        return (
            _news(self._reader, self._best)
            if self._best is not None and is_new and not is_first
            else ""
        )

    def _read(self) -> bool:
        """Returns whether there was something new."""
        if self._reader is None:
            self._reader = TrialReader.of(self.paths)
        if self._reader is None or not self.paths.ledger.exists():
            return False
        is_sound = self._reader.history.last_id > 0
        with run_directory.opened_ledger(self.paths, read_only=True, is_sound=is_sound) as ledger:
            return bool(self._reader.update(ledger))


class WatchReporter:
    """Passes everything on, with the line about the search in the view, and an event for every new
    best trial.
    """

    def __init__(self, inner: Reporter, paths: RunPaths) -> None:
        self._inner, self._watch, self._due = inner, SearchWatch(paths=paths), 0.0

    def event(self, kind: str, message: str, **facts: Any) -> None:
        self._inner.event(kind, message, **facts)

    def tick(self, view: Callable[[], View]) -> None:
        began = time.monotonic()
        if began >= self._due:
            is_first = not self._due
            self.look()
            now = time.monotonic()
            # The first look reads everything, the others what is new.
            self._due = now + max(LOOK_EVERY_S, 0.0 if is_first else (now - began) / LOOKING_SHARE)
        self._inner.tick(lambda: replace(view(), search=self._watch.line))

    def look(self) -> str:
        """Report a new best trial, if there is one; returns the line about the search. To be called
        at its end, too.
        """
        with contextlib.suppress(
            OrchestratorError
        ):  # the ledger is locked, or being replaced; it is read again
            if news := self._watch.look():
                self._inner.event("best", news)
        return self._watch.line


def annotated(snapshots: Iterator[Snapshot]) -> Iterator[Snapshot]:
    """Each snapshot of one run directory with what is to be said of its search, if there is one."""
    watch: SearchWatch | None = None
    for snapshot in snapshots:
        if snapshot.standing == "none" and not snapshot.paths.search_stopped.exists():
            yield snapshot
            continue
        watch = SearchWatch(paths=snapshot.paths) if watch is None else watch
        try:
            news = watch.look()
        except OrchestratorError:
            news = ""
        yield replace(snapshot, search=watch.line, search_news=news)


def status_line(reader: TrialReader, best: Trial | None, front: int) -> str:
    """How far it is, why trials have failed, and why the search has stopped, if it has.

    :param front: number of trials of the Pareto front, where there are several objectives.
    """
    search, asked = reader.search, len(reader.asked)
    failed, waiting, stopped = reader.failed, len(reader.waiting), _why_stopped(reader.paths)
    saved, objectives = reader.saved_share, reader.objectives
    parts = [count(asked, "trial")]
    if search is not None:
        parts = _progress(reader, asked)
        if best is not None and len(objectives) > 1:
            parts.append(f"Pareto front of {count(front, 'trial')}")
        elif best is not None and best.values:
            parts.append(f"best {objectives[0]} {best.values[0]:,.1f} (trial {best.number})")
    is_fruitless = search is not None and best is None and reader.history.is_over
    if failed:
        number, why = _commonest(reader)
        of_many = f"{number:,} of them as " if failed > 1 else ""
        parts.append(
            f"{failed:,} failed" if is_fruitless else f"{failed:,} failed ({of_many}{why})"
        )
    if waiting:
        parts.append(f"{waiting:,} {'waits' if waiting == 1 else 'wait'} at a rung")
    if saved:
        parts.append(f"{saved:.0%} of the env_steps of training all of them to the end saved")
    line = f"{'rungs' if search is None else 'search'}: {' · '.join(parts)}"
    if stopped:
        advice = "Correct the cause; the next run goes on with the same next trial"
        return f"{line}. The search has stopped: {stopped}. {advice}"
    return f"{line}. {_without_value(reader)}" if is_fruitless else line


def _why_stopped(paths: RunPaths) -> str:
    try:
        return read_regular(paths.search_stopped).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _commonest(reader: TrialReader) -> tuple[int, str]:
    """Of the last failed trials: how many have the commonest reason, and the last of these with
    its, on one line.
    """
    failed = list(islice(reversed(reader.history.failed.values()), FAILURES_READ))
    place, number = commonest([trial.why for trial in failed])
    why = " ".join(failed[place].why.split())
    return (
        number,
        f"trial {failed[place].number}: {why[:LONGEST_REASON]}{'…' * (len(why) > LONGEST_REASON)}",
    )


def _without_value(reader: TrialReader) -> str:
    """What to do about a search that has ended without a best trial."""
    failed = list(reader.history.failed.values())
    why = f" ({_commonest(reader)[1]})" if failed else ""
    what = f"No trial has a value of {joined(reader.objectives)}{why}"
    retry = (
        "`retry` trains failed jobs again, and " if any(one.failed_jobs for one in failed) else ""
    )
    return f"{what}. Correct the cause; then {retry}`run --fresh` starts over with another job file"


def _progress(reader: TrialReader, asked: int) -> list[str]:
    """How much of its budget the search has used."""
    search = reader.search
    assert search is not None
    parts = [
        f"{asked:,} of {count(search.trials, 'trial')}" if search.trials else count(asked, "trial")
    ]
    if search.max_env_steps:
        parts.append(f"{reader.env_steps:,} of {search.max_env_steps:,} env_steps")
    if search.max_time_s:
        parts.append(f"{duration(reader.history.elapsed_s)} of {duration(search.max_time_s)}")
    return parts


def _news(reader: TrialReader, best: Trial) -> str:
    named = zip(reader.objectives, best.values or (), strict=False)
    values = ", ".join(f"{name} {value:,.2f}" for name, value in named)
    point = ", ".join(f"{key} = {value}" for key, value in best.point.items())
    return f"new best: trial {best.number}, {values} ({point})"
