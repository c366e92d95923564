"""The trials of a search as an Optuna journal, the file that Optuna's own tools open, such as optuna-dashboard."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.paths import absolute
from orchestrator.experiment import run_directory
from orchestrator.jobfile.search_spec import Dimension, SearchSpec
from orchestrator.ledger.search_events import SearchEvent
from orchestrator.search.history import Trial
from orchestrator.search.trials import TrialReader

STATES = {
    "finished": TrialState.COMPLETE,
    "failed": TrialState.FAIL,
    "waiting": TrialState.PRUNED,
    "training": TrialState.RUNNING,
}
FIRST_KEY = b'{"op_code":'
"""How every line of a journal begins."""


@dataclass(frozen=True, slots=True)
class Exported:
    file: Path
    states: Mapping[str, int]
    """Number of trials in each state, as :meth:`TrialReader.state` names them."""
    is_over: bool
    """Whether the search has come to its end."""


class _Lines(BaseJournalBackend):
    """The lines of a journal, in memory: a file of Optuna's own is flushed to the disk for every trial."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return map(json.loads, self.lines[log_number_from:])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.lines += [json.dumps(log, separators=(",", ":")) for log in logs]


@dataclass(slots=True)
class _Times:
    """Seconds since the epoch, by the number of a trial."""

    asked: dict[int, float] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)

    def note(self, events: Iterable[SearchEvent]) -> None:
        for event in events:
            if event.kind == "asked":
                number = len(self.asked)
                self.asked[number] = self.last[number] = event.at
            elif event.kind in ("reached", "over") and event.trial is not None:
                self.last[event.trial] = event.at


def export(run_dir: Path, out: Path | None = None) -> Exported:
    """Write the trials of a search so far as a journal, which replaces an earlier one.

    A list among the choices of the space is the text of its JSON there: Optuna knows no lists. A trial that waits at a
    rung is pruned, with its values at the rungs. Repetitions are attributes of the trials that they repeat.

    :param out: the file; by default in the run directory.
    :raises UsageError: there is no search, or the file is not to be replaced.
    """
    paths = run_directory.existing(run_dir)
    reader, times = TrialReader.of(paths), _Times()
    if reader is None or reader.search is None:
        raise UsageError(f"{run_dir}: there is no search here, whose trials could be exported; its job file has none")
    with run_directory.reading_ledger(paths) as ledger:
        times.note(reader.update(ledger))
    file = paths.search_journal if out is None else out
    _refuse_others(file)
    backend = _Lines()
    _write_study(backend, reader, reader.search, times, run_dir.absolute().name)
    with disk_full_explained(file, "run the same command again"):
        write_whole(file, "\n".join(backend.lines) + "\n", durable=False)
    return Exported(file, Counter(map(reader.state, reader.asked)), reader.history.is_over)


def _refuse_others(file: Path) -> None:
    folder = absolute(file).parent
    if not folder.is_dir():
        raise UsageError(f"{file}: the folder {folder} does not exist; create it, or choose another file with --out")
    if not os.path.lexists(file):
        return
    if file.is_file():
        with file.open("rb") as content:
            if content.read(len(FIRST_KEY)) in (b"", FIRST_KEY):
                return
    raise UsageError(f"{file}: exists and is no Optuna journal, so it is not replaced; choose another file with --out")


def _write_study(backend: _Lines, reader: TrialReader, search: SearchSpec, times: _Times, name: str) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(backend)
    study = optuna.create_study(storage=storage, study_name=name, directions=list(search.directions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of objectives are marked experimental
        study.set_metric_names(list(search.objectives))
    distributions = {dimension.key: _distribution(dimension) for dimension in search.space}
    repeated = reader.repeated
    for trial in reader.asked:
        again, params = repeated.get(trial.number), _params(search, trial.point)
        study.add_trial(
            FrozenTrial(
                number=-1,
                trial_id=-1,
                state=(state := STATES[reader.state(trial)]),
                value=None,
                values=trial.values,
                datetime_start=_moment(times.asked[trial.number]),
                datetime_complete=_moment(times.last[trial.number]) if state.is_finished() else None,
                params=params or {},
                distributions={} if params is None else distributions,
                user_attrs=_attributes(trial, again) | ({"point": trial.point} if params is None else {}),
                system_attrs={},
                intermediate_values=_at_rungs(trial, reader.rungs) if len(search.objectives) == 1 else {},
            )
        )


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution([_choice(choice) for choice in dimension.choices])
    if dimension.integer:
        return IntDistribution(round(dimension.low), round(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _choice(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _params(search: SearchSpec, point: Mapping[str, Any]) -> dict[str, Any] | None:
    """None for a point outside of the space, whose trial has failed: a sampler of the user's has returned it."""
    values = {}
    for dimension in search.space:
        try:
            dimension.unit(value := point[dimension.key])
        except (KeyError, TypeError, ValueError):
            return None
        values[dimension.key] = _choice(value) if dimension.choices else value
    return values


def _at_rungs(trial: Trial, rungs: Sequence[int]) -> dict[int, float]:
    return {rung: value for rung, value in zip(rungs, trial.reached, strict=False) if value is not None}


def _attributes(trial: Trial, again: Trial | None) -> dict[str, Any]:
    known = {
        "trial": trial.number,
        "jobs": list(trial.jobs),
        "env_steps": trial.env_steps,
        "parent": trial.parent,
        "why": trial.why or None,
        "again": None if again is None or again.values is None else list(again.values),
    }
    return {name: value for name, value in known.items() if value is not None}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
