"""The trials of a search as an Optuna journal, the file that Optuna's own tools open, such as
optuna-dashboard.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import absolute
from orchestrator.experiment.directory import run_directory
from orchestrator.features.search.declaration.spec import Dimension, SearchSpec
from orchestrator.features.search.history import Trial
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import TrialReader, with_earlier, with_further_seeds
from orchestrator.ledger import job_figures

FIRST_KEY = b'{"op_code":'
"""How every line of a journal begins."""
WORKER = "search"
"""Who has written the lines, in place of the random name that Optuna gives to each process."""


@dataclass(frozen=True, slots=True)
class Exported:
    file: Path
    states: Mapping[str, int]
    """Number of trials in each state, as :meth:`TrialReader.state` names them."""
    is_over: bool
    """Whether the search has come to its end."""
    is_replaced: bool
    """Whether there was a journal with lines that no longer hold; programs that have it open cannot
    read on."""


class _Lines(BaseJournalBackend):
    """The lines of a journal, in memory: a file of Optuna's own is flushed to the disk for every
    trial.

    They are the same for the same trials, so that a later journal begins with the lines of an
    earlier one.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now = datetime.fromtimestamp(0, UTC)
        """When a trial ended whose end is written."""
        self._writer = ""

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return [
            json.loads(line) | {"worker_id": self._writer} for line in self.lines[log_number_from:]
        ]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        for log in logs:
            self._writer = log["worker_id"]
            ours = {"worker_id": WORKER}
            if "datetime_complete" in log:
                ours["datetime_complete"] = self.now.isoformat(timespec="microseconds")
            self.lines.append(json.dumps(log | ours, separators=(",", ":")))


def export(run_dir: Path, out: Path | None = None) -> Exported:
    """Write the trials of a search so far as a journal.

    What is new is appended to an earlier journal of the same search, so that programs which have it
    open read on. If what it has was changed, as by a retried trial, the journal is replaced.

    A list among the choices of the space is the text of its JSON there: Optuna knows no lists. A
    trial that waits at a rung is running, and pruned when the search has come to its end, with its
    values at the rungs. Repetitions are attributes of the trials that they repeat, and so
    are the further seeds that count in their value.

    :param out: the file; by default in the run directory.
    :raises UsageError: there is no search, or none any more, or the file is not to be replaced.
    """
    paths = run_directory.existing_run(run_dir)
    reader = TrialReader.of(paths)
    if reader is None or reader.search is None:
        raise _no_search_error(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        events = reader.update(ledger)
        if reader.history.is_withdrawn:
            raise _no_search_error(run_dir)
        jobs = [job_id for trial in reader.asked for job_id in trial.jobs]
        earlier = job_figures.earlier_env_steps(ledger, jobs)
    file = SearchPaths(paths.root).journal if out is None else out
    _refuse_others(file)
    backend = _Lines()
    _write_study(backend, reader, reader.search, events, earlier, run_dir.absolute().name)
    with disk_full_explained(file, "run the same command again"):
        is_replaced = _write_file(file, "".join(f"{line}\n" for line in backend.lines).encode())
    return Exported(
        file, Counter(map(reader.state, reader.asked)), reader.history.is_over, is_replaced
    )


def _no_search_error(run_dir: Path) -> UsageError:
    what = "there is no search here, whose trials could be exported"
    return UsageError(f"{run_dir}: {what}; its job file has none")


def _write_file(file: Path, content: bytes) -> bool:
    """Append to ``file`` what it lacks of ``content``, or write it anew. Returns whether it had
    something else.
    """
    before = b""
    if file.is_file() and not file.is_symlink() and os.access(file, os.W_OK):
        with file.open("a+b") as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)  # against an export at the same time
            journal.seek(0)
            before = journal.read()
            if content.startswith(before):
                journal.write(content[len(before) :])
                return False
    write_whole(file, content.decode(), durable=False)
    return bool(before)


def _refuse_others(file: Path) -> None:
    folder = absolute(file).parent
    if not folder.is_dir():
        raise UsageError(
            f"{file}: the folder {folder} does not exist; create it, or choose another file with --out"
        )
    if not os.path.lexists(file):
        return
    if file.is_file():
        with file.open("rb") as content:
            if content.read(len(FIRST_KEY)) in (b"", FIRST_KEY):
                return
    raise UsageError(
        f"{file}: exists and is no Optuna journal, so it is not replaced; choose another file with --out"
    )


def _write_study(
    backend: _Lines,
    reader: TrialReader,
    search: SearchSpec,
    events: Sequence[SearchEvent],
    earlier: Mapping[str, int | None],
    name: str,
) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(backend)
    study = optuna.create_study(
        storage=storage, study_name=name, directions=list(search.directions)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of objectives are marked experimental
        study.set_metric_names(list(search.objectives))
    journal = _TrialWriter(
        backend=backend,
        storage=storage,
        study_id=storage.get_study_id_from_name(name),
        search=search,
        rungs=reader.rungs if len(search.objectives) == 1 else (),
        repeated=reader.repeated,
        earlier=earlier,
    )
    trials = reader.history.trials
    numbers = itertools.count()
    last_ends = {event.trial: event.id for event in events if event.kind in ("over", "retried")}
    for event in events:
        number = next(numbers) if event.kind == "asked" else event.trial
        if number is None or not trials[number].is_of_search:
            continue
        if event.kind == "asked":
            journal.begin(trials[number], event)
        elif event.kind == "reached":
            journal.reach_rung(trials[number], event)
        elif event.kind == "over" and event.id == last_ends[number]:  # otherwise it was retried
            journal.end(trials[number], event)
    if reader.history.is_over:
        for trial in sorted(reader.waiting, key=lambda trial: trial.number):
            if trial.is_of_search:
                journal.prune(trial)


@dataclass(slots=True, kw_only=True)
class _TrialWriter:
    """Writes what happens to trials, in its order."""

    backend: _Lines
    storage: JournalStorage
    study_id: int
    search: SearchSpec
    rungs: Sequence[int]
    """env_steps of those whose values Optuna takes: of one objective."""
    repeated: Mapping[int, Trial]
    """As :attr:`TrialReader.repeated`."""
    earlier: Mapping[str, int | None]
    """By ``job_id``: env_steps of the policies that the job started from; None: not known."""
    ids: dict[int, int] = field(default_factory=dict)
    """Of trials in the storage, by number."""
    reached: dict[int, list[SearchEvent]] = field(default_factory=dict)
    """The rungs that trials have reached, by number."""

    def begin(self, trial: Trial, event: SearchEvent) -> None:
        params = _params(self.search, trial.point)
        distributions = {dimension.key: _distribution(dimension) for dimension in self.search.space}
        attributes = {"trial": trial.number, "jobs": list(trial.jobs), "parent": trial.parent}
        attributes["point"] = trial.point if params is None else None
        template = FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            values=None,
            datetime_start=_moment(event),
            datetime_complete=None,
            params=params or {},
            distributions={} if params is None else distributions,
            user_attrs={name: value for name, value in attributes.items() if value is not None},
            system_attrs={},
            intermediate_values={},
        )
        self.ids[trial.number] = self.storage.create_new_trial(self.study_id, template)

    def reach_rung(self, trial: Trial, event: SearchEvent) -> None:
        before = self.reached.setdefault(trial.number, [])
        value = event.content["value"]
        if len(before) < len(self.rungs) and value is not None:
            self.storage.set_trial_intermediate_value(
                self.ids[trial.number], self.rungs[len(before)], value
            )
        before.append(event)

    def end(self, trial: Trial, event: SearchEvent) -> None:
        again = self.repeated.get(trial.number)
        others: dict[str, Any] = {}
        if again is not None and again.values is not None:
            others["again"] = list(again.values)
        if trial.further_with_value:
            others["seed_values"] = trial.seed_values
            others["further_jobs"] = [
                job_id for one in trial.further_with_value for job_id in one.jobs
            ]
        state = TrialState.FAIL if trial.values is None else TrialState.COMPLETE
        self._end(trial, event, state, others)

    def prune(self, trial: Trial) -> None:
        """Write that ``trial``, which waits at a rung, has ended there."""
        self._end(trial, self.reached[trial.number][-1], TrialState.PRUNED)

    def _end(
        self,
        trial: Trial,
        event: SearchEvent,
        state: TrialState,
        others: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """:param others: further attributes."""
        trial_id = self.ids[trial.number]
        of_further = sum(one.env_steps for one in trial.further_with_value)
        env_steps = event.content["env_steps"] + of_further
        attributes = {
            "env_steps": env_steps,
            "lineage_env_steps": self._with_earlier(trial, env_steps),
            "why": trial.why or None,
            **others,
        }
        for name, value in attributes.items():
            if value is not None:
                self.storage.set_trial_user_attr(trial_id, name, value)
        self.backend.now = _moment(event)
        self.storage.set_trial_state_values(trial_id, state, trial.values)

    def _with_earlier(self, trial: Trial, env_steps: int) -> int | None:
        """These, with those of the policies that its jobs started from; None where there are none,
        or they are not known.
        """
        trained = replace(with_further_seeds(trial), env_steps=env_steps)
        whole = with_earlier(trained, [self.earlier.get(job_id) for job_id in trained.jobs])
        return None if whole == env_steps else whole


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices:
        return CategoricalDistribution(_choices(dimension))
    if dimension.integer:
        return IntDistribution(round(dimension.low), round(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _choices(dimension: Dimension) -> Sequence[Any]:
    """As Optuna takes them: all are the texts of their JSON where it would take two for the same
    one, such as 1 and ``true``.
    """
    choices = [
        choice if isinstance(choice, bool | int | float | str) else json.dumps(choice)
        for choice in dimension.choices
    ]
    is_each_another = len(set(choices)) == len(choices)
    return choices if is_each_another else [json.dumps(choice) for choice in dimension.choices]


def _params(search: SearchSpec, point: Mapping[str, Any]) -> dict[str, Any] | None:
    """None for a point outside of the space, whose trial has failed: a sampler of the user's has
    returned it.
    """
    values = {}
    for dimension in search.space:
        try:
            dimension.unit(value := point[dimension.key])
        except (KeyError, TypeError, ValueError):
            return None
        if dimension.choices:
            value = _choices(dimension)[dimension.place_of(value)]
        values[dimension.key] = value
    return values


def _moment(event: SearchEvent) -> datetime:
    return datetime.fromtimestamp(event.at, UTC)
