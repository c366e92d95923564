"""``orchestrator.Search``: a search over bodies and hyperparameters from a Python program."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import api
from orchestrator.analysis.statistics import Estimate as Mean
from orchestrator.analysis.statistics import TwoGroups
from orchestrator.client.options import RunOptions
from orchestrator.core.errors import RunDirError, UsageError
from orchestrator.core.front_end import python_program
from orchestrator.core.paths import RunPaths, absolute, current_directory
from orchestrator.core.robot_sources import collection_of
from orchestrator.core.text import plain
from orchestrator.experiment import run_directory
from orchestrator.features.search import ranking
from orchestrator.features.search.declaration.tables import SearchTable
from orchestrator.features.search.estimates import Estimate
from orchestrator.features.search.history import Trial
from orchestrator.features.search.racing import Shrunken
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.features.search.trials import TrialReader, failed_further_seeds, lineage_env_steps
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.keys.value_types import is_maker
from orchestrator.ledger import Ledger
from orchestrator.machine.slots import MaxParallel
from orchestrator.results import ExperimentResult, Result, pandas_for, result_of
from orchestrator.server.differences import OnChange


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One point of a search, and what came of it.

    :ivar number: of the trial, from 0 on.
    :ivar point: the value of every key of the space.
    :ivar value: by which trials are compared: the first of ``values``; None if the trial failed or
        is not over.
    :ivar values: one for each objective.
    :ivar in_search: where these are those of another training, with fresh seeds: its values in the
        search. ``env_steps``, ``lineage_env_steps`` and ``results`` are then of that training, too,
        which has no ``parent``. Otherwise empty.
    :ivar estimate: of :meth:`Search.best` by the objective or by ``"estimate"``: what a model of
        the finished trials says of the point, ``mean`` and ``error`` (standard deviation); None
        where there is none, and where there is ``believed``.
    :ivar believed: of :meth:`Search.best` by the objective in a search with ``race``: what its
        seeds say of it, as ``estimate``.
    :ivar fresh_means: of :meth:`Search.best`, where a trial was trained again: for each objective
        the mean over its fresh seeds, with its interval of 95 %, or None where it has one seed.
        Otherwise empty.
    :ivar against_reference: of :meth:`Search.best`, where a trial and the unchanged job were trained
        again: for each objective how the trial differs from it over these seeds, or None where a
        value is missing. ``difference`` has an interval of 95 %, by Welch's t as ``p``. Otherwise
        empty.
    :ivar env_steps: of all of its trainings together.
    :ivar lineage_env_steps: ``env_steps``, and those of the policies that its trainings started from
        one after another, which count for each training that started from them; None if they are
        not known.
    :ivar parent: the trial whose policy it started from; None: it started from nothing.
    :ivar reevaluates: the trial whose point is trained again from nothing, with other seeds; None:
        it is no such trial.
    :ivar role: of a training of the unchanged job: ``"reference"`` for one like those that are
        trained again, ``"start"`` for the one that all trials start from; otherwise empty.
    :ivar error: why it failed.
    :ivar seed_errors: why further seeds of it have failed, which have no part in its value.
    :ivar results: of its trainings, one for each seed; of further seeds, of those that count in its
        value.
    """

    number: int
    point: Mapping[str, Any]
    value: float | None
    values: Sequence[float] = ()
    in_search: Sequence[float] = ()
    estimate: Estimate | None = None
    believed: Shrunken | None = None
    fresh_means: Sequence[Mean | None] = ()
    against_reference: Sequence[TwoGroups | None] = ()
    env_steps: int
    lineage_env_steps: int | None
    parent: int | None
    reevaluates: int | None
    role: str = ""
    error: str | None
    seed_errors: Sequence[str] = ()
    results: Sequence[Result] = field(default=(), repr=False)


class Search:
    """A search, as the table ``[search]`` of a job file declares it; see docs/search.md.

    ::

        search = orchestrator.Search(
            xml="robots/quadruped.xml",
            space={"ppo.learning_rate": {"low": 1e-4, "high": 3e-3, "log": True}},
            sampler="cmaes", trials=50, task="forward", total_timesteps=100_000, run_dir="runs/search",
        )
        search.run()
        print(search.best(5))

    :param xml: path of an MJCF file, or ``"module:function"`` that makes the robot of each point.
    :param space: what varies: dotted keys of a job, each with ``low`` and ``high``, or with
        ``choices``.
    :param max_parallel: as in :func:`orchestrator.train`.
    :param run_dir: directory for all results; the default is a new directory in ``runs/``. A search
        with the same directory resumes.
    :param settings: keys of ``[search]`` (``sampler``, ``objective``, ``trials``, …), and those of
        a job.
    :raises UsageError: a setting is invalid.
    """

    def __init__(
        self,
        *,
        xml: str | os.PathLike[str],
        space: Mapping[str, Any],
        max_parallel: MaxParallel = None,
        run_dir: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        self._max_parallel = api.checked_max_parallel(max_parallel)
        new = Path("runs") / f"search-{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
        self.run_dir = api.directory(run_dir or new)
        """Directory of all results."""
        declared = _declared(settings, space)
        robot = _checked_robot(xml)
        with python_program():
            self._experiment: Experiment = _experiment_of(declared, robot, self.run_dir)

    def run(
        self, *, show: bool = False, fresh: bool = False, on_change: OnChange = "refuse"
    ) -> ExperimentResult:
        """Run the search, or resume it. Returns the results of all of its trainings.

        :param show: as in :func:`orchestrator.train`, and so is ``fresh``.
        :param on_change: if another search has begun in the run directory: ``"refuse"``;
            or ``"restart"``, to start over.
        :raises UsageError: the space does not fit the robot, or another search has begun in the run
            directory. Also if the search has stopped before its end, for example because a sampler
            of yours has raised. All of its jobs have then ended, :meth:`trials` has their results,
            and the same call goes on with the same next trial.
        :raises DiskFullError: no space is left; every job has stopped, and the same call resumes.
        :raises SupervisorError: unexpected error of the supervisor; every job has stopped, and the
            same call resumes.
        :raises RunInterrupted: a KeyboardInterrupt, after Ctrl-C, when every worker has exited; the
            same call resumes.
        """
        with python_program():
            options = RunOptions(
                run_dir=self.run_dir,
                is_listed=True,
                max_parallel=self._max_parallel,
                fresh=fresh,
                on_change=api.checked_on_change(on_change),
            )
            found = api.finish(self._experiment, options, show=show, callbacks=None)
            stopped = SearchPaths(self.run_dir).stopped
            if stopped.exists():
                why = stopped.read_text(errors="replace")
                raise UsageError(
                    f"{self.run_dir}: the search has stopped: {why}. Correct the cause: the same call goes on with"
                    " the same next trial"
                )
            return found

    def trials(self) -> list[TrialResult]:
        """All trials so far, in the order in which they were made; also while the search runs.

        :raises UsageError: there is no run directory yet, or it cannot be read.
        """
        with self._opened() as (reader, ledger):
            return _results(reader, ledger)

    def best(
        self, count: int = 5, by: str | None = None, *, smallest: bool = False
    ) -> list[TrialResult]:
        """Finished trials, the best first; of several objectives those that no other surpasses in
        all of them. They are ranked as the command ``best`` does, as if the unchanged job were not
        there.

        Those that were trained again come first, as that training (see :class:`TrialResult`);
        :meth:`trials` has both trainings as trials of their own.

        :param by: another figure, whose values the results have: a measure, a column or an
            expression of them. Or ``"estimate"``: by what a model of the finished trials says of
            the objective; all results are then of the search itself.
        :param smallest: whether the smallest of ``by`` comes first, and not the largest.
        :raises UsageError: ``count`` is no whole number from 0; there is no run directory yet, or it
            cannot be read; none of the finished trials has a value of ``by``; or there are no
            estimates.
        """
        if not isinstance(count, int) or count < 0:
            raise UsageError(f"Search.best: count is {count!r}; expected a whole number from 0")
        with python_program():
            return self._best(count, by, is_smallest_first=smallest)

    def _best(self, count: int, by: str | None, *, is_smallest_first: bool) -> list[TrialResult]:
        run_dir = self._paths().root
        found = ranking.read(
            run_dir, count, by, is_smallest_first=is_smallest_first, with_reference=False
        )
        if not found.is_search:
            raise self._no_search_error()
        with run_directory.reading_ledger(found.paths) as ledger:
            return [
                replace(
                    _trial_result(
                        trial, found.paths, ledger, found.lineages[trial.number].env_steps
                    ),
                    estimate=found.estimates.get(trial.number),
                    believed=found.believed.get(trial.number),
                    fresh_means=found.fresh_means(trial),
                    against_reference=found.against_reference.get(trial.number, ()),
                )
                for trial in found.shown
            ]

    def _paths(self) -> RunPaths:
        """:raises RunDirError: nothing has run in the run directory."""
        paths = run_directory.existing_run(self.run_dir)
        if not paths.ledger.exists():
            raise self._no_search_error()
        return paths

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[TrialReader, Ledger]]:
        """What has read the search in the run directory, and the ledger there.

        :raises RunDirError: no search has run there.
        """
        paths = self._paths()
        with run_directory.reading_ledger(paths) as ledger:
            reader = TrialReader.updated(paths, ledger)
            if reader is None:
                raise self._no_search_error()
            yield reader, ledger

    def _no_search_error(self) -> RunDirError:
        return RunDirError(f"{self.run_dir}: no search has been run here; `run()` begins it")

    def to_dataframe(self) -> Any:
        """A :class:`pandas.DataFrame` with a row for each trial of :meth:`trials`.

        Its columns: ``trial`` (the number), each key of the space, each objective of the search that
        has run in the run directory, and, as in :class:`TrialResult`, ``env_steps``,
        ``lineage_env_steps``, ``parent``, ``reevaluates``, ``role`` and ``error``. An objective that
        has the name of one of these stands in its place.

        :raises UsageError: pandas is not installed, there is no run directory yet, or it cannot be
            read.
        """
        pandas = pandas_for("Search.to_dataframe")
        with self._opened() as (reader, ledger):
            trials = _results(reader, ledger)
        return pandas.DataFrame([_table_row(trial, reader.objectives) for trial in trials])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """What a program has declared, as tables of a job file."""

    search: Mapping[str, Any]
    defaults: Mapping[str, Any]
    job: Mapping[str, Any]
    """Without its robot."""


def _declared(settings: Mapping[str, Any], space: Mapping[str, Any]) -> _Declared:
    """Tell the keys of ``[search]`` among ``settings`` from those of a job.

    :raises UsageError: one of them is an argument of the class under another name, or the result
        given as ``init`` has no policy.
    """
    table = {key: value for key, value in settings.items() if key in SearchTable.model_fields}
    defaults = {key: value for key, value in settings.items() if key not in table}
    job = {"name": defaults.pop("name")} if "name" in defaults else {}
    api.refuse_unknown("Search", defaults, [*SearchTable.model_fields, "max_parallel", "run_dir"])
    if "init" in defaults:
        defaults["init"] = api.start_policy(defaults["init"], "Search: init")
    if not {"task", "env", "entry_point"} & defaults.keys():
        defaults["task"] = "auto"
    search = {**_without_none(table), "space": _without_none(space)}
    return _Declared(search=search, defaults=defaults, job=job)


def _checked_robot(xml: Any) -> str:
    """:raises UsageError: it is neither a path nor a function's name."""
    if not isinstance(xml, str | os.PathLike):
        raise UsageError(
            f'Search: xml={xml!r:.60}; expected a path, or a function as "module:function"'
        )
    robot = os.fsdecode(xml)
    if robot.lstrip().startswith("<"):
        raise UsageError("Search: xml is MJCF text; expected a path: write it to a file that stays")
    return robot


def _experiment_of(declared: _Declared, robot: str, run_dir: Path) -> Experiment:
    """Resolve what is declared as the content of a job file."""
    here = current_directory()
    base = _base(declared, robot) or run_dir
    is_path = robot.strip() and not (is_maker(robot) or collection_of(robot))
    xml = str(absolute(robot)) if is_path and base != here else robot
    data = {
        "name": plain(run_dir.name),
        "defaults": declared.defaults,
        "jobs": [{**declared.job, "xml": xml}],
        "search": declared.search,
    }
    return from_mapping(data, source="orchestrator.Search", base=base)


def _base(declared: _Declared, robot: str) -> Path | None:
    """The folder that relative paths refer to, which has the user's code."""
    named = [declared.defaults.get(key) for key in api.CODE_KEYS]
    if is_maker(robot):
        named.insert(0, robot)
    return api.code_folder(*named, declared.search.get("sampler"))


def _results(reader: TrialReader, ledger: Ledger) -> list[TrialResult]:
    """The results of all trials that ``reader`` has read from ``ledger``."""
    trials = reader.trials
    lineages = lineage_env_steps(ledger, trials)
    return [_trial_result(trial, reader.paths, ledger, lineages[trial.number]) for trial in trials]


def _trial_result(
    trial: Trial, paths: RunPaths, ledger: Ledger, lineage: int | None
) -> TrialResult:
    return TrialResult(
        number=trial.number,
        point=trial.point,
        value=trial.values[0] if trial.values else None,
        values=tuple(trial.values or ()),
        in_search=tuple(trial.in_search or ()),
        env_steps=trial.env_steps,
        lineage_env_steps=lineage,
        parent=trial.parent,
        reevaluates=trial.reevaluates,
        role=trial.role,
        error=trial.why or None,
        seed_errors=tuple(one.why for one in failed_further_seeds([trial])),
        results=tuple(result_of(paths, ledger.summary_of(job_id)) for job_id in trial.jobs),
    )


def _table_row(trial: TrialResult, objectives: Sequence[str]) -> dict[str, Any]:
    """By the names of columns; an objective may have the name of another column, and counts."""
    values: Sequence[float | None] = trial.values or [None] * len(objectives)
    others = {
        "env_steps": trial.env_steps,
        "lineage_env_steps": trial.lineage_env_steps,
        "parent": trial.parent,
        "reevaluates": trial.reevaluates,
        "role": trial.role,
        "error": trial.error,
    }
    return {
        "trial": trial.number,
        **trial.point,
        **dict(zip(objectives, values, strict=True)),
        **{name: value for name, value in others.items() if name not in objectives},
    }


def _without_none(table: Any) -> Any:
    """``table`` without keys whose value is None, also in the tables within it."""
    if not isinstance(table, Mapping):
        return table
    return {key: _without_none(value) for key, value in table.items() if value is not None}
