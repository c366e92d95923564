"""``compare RUN --jobs A,B --race``: two jobs get further seeds until it is decided which is
higher.

The seeds are trained in a run directory beside RUN, of which nothing is changed: an ordinary
experiment, to which each round of the race adds jobs. So nothing is lost when it is killed, and the
same command goes on. What the values say is decided by :mod:`orchestrator.analysis.sequential`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TextIO

from orchestrator import api
from orchestrator.analysis import run_reader, sequential
from orchestrator.analysis.sequential import LEAST_SEEDS, MOST_SEEDS, Look, Outcome, Rules
from orchestrator.analysis.two_groups import Figure, Interval
from orchestrator.core.errors import RunInterrupted, UsageError
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import option, repeat_call
from orchestrator.core.job import TERMINAL, Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment import session
from orchestrator.experiment.beside_run import BesideRun
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.planning.run_plan import RunOptions
from orchestrator.features.compare import comparison, contestants, job_groups
from orchestrator.features.compare.comparison import Difference
from orchestrator.features.compare.contestants import Conditions, Contestant, Field
from orchestrator.jobfile import Experiment
from orchestrator.jobfile.job_names import without_seed
from orchestrator.keys.names import safe_name
from orchestrator.ledger import SummaryRow
from orchestrator.machine import topology
from orchestrator.machine.slots import MaxParallel
from orchestrator.supervisor.events import DetachableReporter, Reporter
from orchestrator.terminal.background_output import in_background
from orchestrator.terminal.run_view import LineReporter

MOST_SEEDS_A_ROUND = 4
"""So many seeds of both are trained between two looks where there are cores for them: more would
often be trained in vain."""
BUDGETS = "race.json"
"""In the race's run directory: the budgets that were declared, for each figure, each larger than
those before."""
FRESH = "race-fresh.json"
"""In the race's run directory: the seeds that no job of RUN had when they were begun. They go on to
count where RUN gets them later, as from a search that goes on."""
RESULTS = "race-results.json"
"""In the race's run directory: what was found, for each figure, as in ``--json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOptions:
    """What is declared for a race."""

    rules: Rules
    conditions: Conditions
    max_parallel: MaxParallel = None
    progress: TextIO | None = None
    """Where a line for each event goes; None: nowhere."""
    ends_process: bool = False
    """Whether the process ends after a race that a signal has stopped: as for
    :func:`.session.run`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedJob:
    """One of the two."""

    name: str
    values: Sequence[float]
    """For each of :attr:`RaceResult.seeds`."""
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """What a race has shown.

    :ivar race_dir: the run directory of the seeds that were trained for it; there is none where the
        values of ``run_dir`` decided it.
    :ivar by: the figure: a measure, a column such as ``eval_mean``, or an expression of them.
    :ivar jobs: both, in the order in which they were named.
    :ivar seeds: those with a value of both.
    :ivar trained: how many trainings ``race_dir`` has that are over.
    :ivar outcome: of the second job against the first: ``"higher"``, ``"lower"``, ``"no
        difference"`` (none above the smallest that matters), or ``"not decided"`` (the budget is
        spent).
    :ivar difference: mean of the second job minus mean of the first. Its interval of 95 % holds
        whenever one looks and stops; None for fewer than three seeds.
    :ivar p: of no difference, over all looks, at least 0.001; None likewise.
    :ivar most_seeds: the budget, of each job.
    :ivar smallest_difference: the smallest that matters; None: each does.
    :ivar settings: what both are trained with, where that differs: A is the first job, B the second.
    :ivar remarks: what has to be known to trust it.
    """

    run_dir: Path
    race_dir: Path
    by: str
    jobs: Sequence[RacedJob]
    seeds: Sequence[int]
    trained: int
    outcome: Outcome
    difference: Figure
    p: float | None
    most_seeds: int
    smallest_difference: float | None
    settings: Sequence[Difference] = ()
    remarks: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """The content of ``--json``."""
        return {**asdict(self), "run_dir": str(self.run_dir), "race_dir": str(self.race_dir)}


def checked_rules(most_seeds: int | None, smallest_difference: float | None) -> Rules:
    """:raises UsageError: one of them is out of its range."""
    rules = Rules()
    if most_seeds is not None:
        is_whole = isinstance(most_seeds, Integral) and not isinstance(most_seeds, bool)
        if not is_whole or not LEAST_SEEDS <= most_seeds <= MOST_SEEDS:
            raise UsageError(
                f"compare: {option('most_seeds')}: expected a whole number from {LEAST_SEEDS} to"
                f" {MOST_SEEDS}, found {most_seeds}"
            )
        rules = dataclasses.replace(rules, most_seeds=int(most_seeds))
    if smallest_difference is not None:
        is_number = isinstance(smallest_difference, Real) and math.isfinite(smallest_difference)
        if not is_number or not smallest_difference > 0:
            raise UsageError(
                f"compare: {option('smallest_difference')}: expected a number above 0, in the unit"
                f" of the figure, found {smallest_difference}"
            )
        rules = dataclasses.replace(rules, smallest_difference=float(smallest_difference))
    return rules


def race(run_dir: Path, names: Sequence[str], by: str | None, options: RaceOptions) -> RaceResult:
    """Race two jobs of a run directory.

    :raises UsageError: they cannot be raced, or further seeds cannot be trained.
    :raises RunInterrupted: it was stopped; the same call goes on.
    :raises DiskFullError, SupervisorError: everything has stopped; the same call goes on.
    """
    field = contestants.read(run_dir, names, by, options.conditions)
    race_dir = _race_dir(field)
    for remark in job_groups.other_tasks_remarks(field.by, field.settings):
        _tell("warning", remark, options.progress)
    while True:
        standing = _standing(field, race_dir, options.rules)
        look = standing.look()
        if look is not None and look.outcome != "open":
            return _noted(_result(standing, look))
        seeds = standing.next_seeds(_seeds_a_round(field, options.max_parallel))
        if not seeds:
            raise UsageError(
                f"{race_dir}: no seed has a value of both jobs, and the budget of"
                f" {standing.rules.most_seeds} seeds is spent; `status {race_dir}` says why"
            )
        _tell("race", _progress_text(standing, look, seeds), options.progress)
        _train(standing, seeds, options)
        _refuse_standstill(standing, seeds)


def _race_dir(field: Field) -> Path:
    """Beside the run directory: the same for both orders of the jobs."""
    root = field.run_dir if field.run_dir.name not in ("", "..") else field.run_dir.resolve()
    names = "-".join(sorted(one.name for one in field.both))
    return root.parent / safe_name(f"{root.name}-race-{names}")


# -- what there is


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """A race between two rounds."""

    field: Field
    race_dir: Path
    rules: Rules
    """Their budget is the largest that was ever declared, by which the bounds are made."""
    budget: int
    """Seeds that may be tried of each job, now."""
    budgets: Sequence[int]
    """Those that were declared for this figure, each larger than those before."""
    fresh: Collection[int]
    """Seeds that were fresh when the race began them, where only such count."""
    raced: Mapping[str, SummaryRow]
    """The jobs of the race's run directory, by id."""
    declared: Sequence[Job]
    """The same, as they are declared."""

    def limited_to(self, budgets: Sequence[int]) -> _Standing:
        """The same where these were declared: the bounds are those of the largest, and hold for
        smaller ones, too.
        """
        most = max(budgets)
        return dataclasses.replace(
            self,
            rules=dataclasses.replace(self.rules, most_seeds=most),
            budget=min(self.budget, most),
            budgets=budgets,
        )

    def has_tried(self, seed: int) -> bool:
        """Whether both jobs have been trained with it, with or without a value."""
        return all(self._has_tried(one, seed) for one in self.field.both)

    def _has_tried(self, contestant: Contestant, seed: int) -> bool:
        row = self._row(contestant, seed)
        return seed in contestant.values or (row is not None and row["state"] in TERMINAL)

    def _row(self, contestant: Contestant, seed: int) -> SummaryRow | None:
        return self.raced.get(contestant.job_id(seed))

    def value(self, contestant: Contestant, seed: int) -> float | None:
        if seed in contestant.values:
            return contestant.values[seed]
        row = self._row(contestant, seed)
        return None if row is None else job_groups.value_of(row, self.field.by)

    @property
    def known_seeds(self) -> list[int]:
        """Those of the run directory that count, then those of the race that do, each rising."""
        trained = {row["seed"] for row in self.raced.values()}
        of_race = sorted(one for one in trained if self.field.counts_in_race(one, self.fresh))
        return list(dict.fromkeys([*self.field.declared_seeds, *of_race]))

    @property
    def tried(self) -> list[int]:
        return [seed for seed in self.known_seeds if self.has_tried(seed)]

    @property
    def seeds(self) -> list[int]:
        """Those with a value of both."""
        return [
            seed
            for seed in self.tried
            if all(self.value(one, seed) is not None for one in self.field.both)
        ]

    def values(self, contestant: Contestant) -> list[float]:
        """Of :attr:`seeds`."""
        found = [self.value(contestant, seed) for seed in self.seeds]
        return [value for value in found if value is not None]

    def look(self) -> Look | None:
        """None without a seed that has a value of both."""
        first = self.values(self.field.first)
        if not first:
            return None
        is_spent = len(self.tried) >= self.budget
        return sequential.look(first, self.values(self.field.second), self.rules, is_spent=is_spent)

    def next_seeds(self, most: int) -> list[int]:
        """What is trained next: seeds that one of both lacks, those that have begun, then new ones.

        :param most: seeds a round; more only up to the first look.
        """
        tried = len(self.tried)
        number = min(max(most, LEAST_SEEDS - tried), self.budget - tried)
        begun = [seed for seed in self.known_seeds if not self.has_tried(seed)]
        new = 1 + max(self.field.first_new_seed - 1, *self.known_seeds, -1)
        return [*begun, *range(new, new + max(0, number - len(begun)))][: max(number, 0)]

    def jobs(self, seeds: Sequence[int]) -> list[Job]:
        """All jobs of the race's run directory, with those that ``seeds`` need."""
        wanted = [
            one.job(seed)
            for seed in seeds
            for one in self.field.both
            if not self._has_tried(one, seed)
        ]
        return [*self.declared, *(job for job in wanted if job.job_id not in self.raced)]


def _standing(field: Field, race_dir: Path, rules: Rules) -> _Standing:
    """:raises UsageError: the race's run directory has other trainings."""
    raced: Mapping[str, SummaryRow] = {}
    declared: Sequence[Job] = ()
    budgets: Sequence[int] = ()
    if run_directory.is_run_directory(RunPaths(race_dir)):
        snapshot = run_snapshot.status(race_dir)
        _refuse_running(race_dir, snapshot)
        rows = comparison.declared_jobs(snapshot.paths)
        of_race = {one.job_id(row.job.spec.seed) for one in field.both for row in rows}
        if others := [row.job_id for row in rows if row.job_id not in of_race]:
            raise UsageError(
                f"{race_dir}: has other jobs, such as {others[0]}, where this race would train its"
                " own; rename or remove this directory"
            )
        for one in field.both:
            own = [row for row in rows if row.job_id == one.job_id(row.job.spec.seed)]
            if not all(one.trains(row) for row in own):
                raise UsageError(
                    f"{race_dir}: {one.name} was raced as it was declared before, or from another"
                    " start; rename or remove this directory to race it anew"
                )
        raced = {row["job_id"]: row for row in snapshot.rows}
        declared = [row.job for row in rows]
        budgets = _noted_budgets(race_dir, field.by)
    standing = _Standing(
        field=field,
        race_dir=race_dir,
        rules=rules,
        budget=rules.most_seeds,
        budgets=budgets,
        fresh=_noted_fresh(race_dir),
        raced=raced,
        declared=declared,
    )
    if budgets and _is_decided(before := standing.limited_to(budgets)):
        return before
    return standing.limited_to(_raised(budgets, rules.most_seeds))


def _is_decided(standing: _Standing) -> bool:
    look = standing.look()
    return look is not None and look.outcome in sequential.DECISIONS


def _refuse_running(race_dir: Path, snapshot: run_snapshot.Snapshot) -> None:
    """:raises UsageError: another process trains its seeds."""
    if snapshot.holder is not None:
        raise UsageError(
            f"{race_dir}: another process trains the seeds of this race ({snapshot.holder}):"
            f" `attach {race_dir}` follows it, `stop {race_dir}` stops it"
        )


def _noted_budgets(race_dir: Path, by: str) -> list[int]:
    """Those with which seeds were trained for this figure, as they were raised."""
    recorded = (run_reader.read_json_object(race_dir / BUDGETS) or {}).get(by)
    return [one for one in recorded if type(one) is int] if isinstance(recorded, list) else []


def _raised(budgets: Sequence[int], budget: int) -> Sequence[int]:
    """``budgets`` with ``budget``, if that is larger than all of them."""
    return [*budgets, budget] if budget > max(budgets, default=0) else budgets


def _note_budget(race_dir: Path, by: str, budget: int) -> None:
    """Record a budget that is larger than all that were declared for this figure."""
    known = _noted_budgets(race_dir, by)
    budgets = _raised(known, budget)
    if budgets != known:
        path = race_dir / BUDGETS
        recorded = run_reader.read_json_object(path) or {}
        write_whole(path, json.dumps({**recorded, by: budgets}) + "\n")


def _noted_fresh(race_dir: Path) -> set[int]:
    recorded = (run_reader.read_json_object(race_dir / FRESH) or {}).get("seeds")
    return {one for one in recorded if type(one) is int} if isinstance(recorded, list) else set()


def _note_fresh(race_dir: Path, seeds: Sequence[int]) -> None:
    """Record seeds that are fresh now."""
    noted = _noted_fresh(race_dir)
    if not noted.issuperset(seeds):
        text = json.dumps({"seeds": sorted(noted.union(seeds))})
        write_whole(race_dir / FRESH, f"{text}\n")


class _NotesRound(BesideRun):
    """Records the budget of a round, and its seeds where they are fresh, before it trains, so that
    one that is killed has declared them.
    """

    def __init__(self, standing: _Standing, seeds: Sequence[int]) -> None:
        self._standing = standing
        self._seeds = seeds

    def begin(self, has_free_cores: Callable[[], bool | None]) -> None:
        standing = self._standing
        _note_budget(standing.race_dir, standing.field.by, standing.budget)
        if standing.field.is_fresh:
            _note_fresh(standing.race_dir, self._seeds)


def _noted(found: RaceResult) -> RaceResult:
    """``found``, which is recorded with its budget in the race's run directory, if there is one, for
    its report and for what a larger budget means later. Where it cannot be, as in a directory of
    somebody else, that is one more remark.
    """
    if not run_directory.is_run_directory(RunPaths(found.race_dir)):
        return found
    path = found.race_dir / RESULTS
    recorded = run_reader.read_json_object(path) or {}
    results = json.dumps({**recorded, found.by: found.facts()})
    try:
        _note_budget(found.race_dir, found.by, found.most_seeds)
        if results != json.dumps(recorded):
            write_whole(path, f"{results}\n")
    except OSError as error:
        remark = f"{path} cannot be written, so the report of the race does not have this: {error.strerror}."
        return dataclasses.replace(found, remarks=[*found.remarks, remark])
    return found


# -- a round


def _seeds_a_round(field: Field, max_parallel: MaxParallel) -> int:
    jobs_at_once = topology.detect().capacity
    if isinstance(max_parallel, int):
        jobs_at_once = min(jobs_at_once, max_parallel)
    cores = max(one.template.job.resources.all_cores for one in field.both)
    return min(MOST_SEEDS_A_ROUND, max(1, jobs_at_once // cores // 2))


def _train(standing: _Standing, seeds: Sequence[int], options: RaceOptions) -> None:
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
                beside={"the race": _NotesRound(standing, seeds)},
                ends_process=options.ends_process,
            )
    except KeyboardInterrupt:
        raise _interrupted(race_dir) from None
    if finished.interrupted or finished.signalled:
        raise _interrupted(race_dir)
    if finished.problem is not None:
        problem = finished.problem
        raise UsageError(f"{race_dir}: {problem.what}. {problem.advice} {_go_on()}")


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
    return RunInterrupted(race_dir, f"{race_dir}: the race has stopped. {_go_on()}")


def _go_on() -> str:
    again = repeat_call()
    return f"{again[0].upper()}{again[1:]} to go on; nothing that was trained is lost."


def _refuse_standstill(before: _Standing, seeds: Sequence[int]) -> None:
    """:raises UsageError: the last round has trained nothing, or the next would be in vain."""
    now = _standing(before.field, before.race_dir, before.rules)
    race_dir = now.race_dir
    left = [seed for seed in seeds if not now.has_tried(seed)]
    if left:
        what = count(len(left), "seed is", "seeds are")
        raise UsageError(
            f"{race_dir}: {what} not trained to the end ({_numbers(left)}); `status {race_dir}`"
            f" says why, `resume {race_dir}` queues paused jobs. {_go_on()}"
        )
    last = now.tried[-LEAST_SEEDS:]
    for one in now.field.both:
        if len(last) == LEAST_SEEDS and all(now.value(one, seed) is None for seed in last):
            raise UsageError(
                f"{race_dir}: {one.name} has no value of {now.field.by} with any of the last"
                f" {LEAST_SEEDS} seeds ({_numbers(last)}), so more would be trained in vain;"
                f" `status {race_dir}` says why, `retry {race_dir}` trains failed jobs again. {_go_on()}"
            )


def _numbers(seeds: Sequence[int]) -> str:
    return listed([str(seed) for seed in seeds])


# -- what is said


def _tell(kind: str, text: str, progress: TextIO | None) -> None:
    if progress is not None:
        with in_background(progress) as out:
            LineReporter(out).event(kind, text)


def _progress_text(standing: _Standing, look: Look | None, seeds: Sequence[int]) -> str:
    field = standing.field
    what = "nothing is known yet"
    if look is not None:
        what = f"{field.second.name} − {field.first.name} = {look.difference:.4g} ({field.by})"
        if look.reach is not None:
            low = look.difference - look.reach
            what += f" [{low:.4g}, {look.difference + look.reach:.4g}]"
        what += f" after {count(look.seeds, 'seed')} each: not decided"
    next_ones = count(len(seeds), "seed")
    return f"{what}; {next_ones} of at most {standing.budget} trained next: {_numbers(seeds)}"


def _result(standing: _Standing, look: Look) -> RaceResult:
    field = standing.field
    interval = None
    if look.reach is not None:
        interval = Interval(
            low=look.difference - look.reach,
            high=look.difference + look.reach,
            method=sequential.METHOD,
        )
    return RaceResult(
        run_dir=field.run_dir,
        race_dir=standing.race_dir,
        by=field.by,
        jobs=[_raced_job(standing, one) for one in field.both],
        seeds=standing.seeds,
        trained=sum(row["state"] in TERMINAL for row in standing.raced.values()),
        outcome=look.outcome,
        difference=Figure(value=look.difference, interval=interval),
        p=look.p,
        most_seeds=standing.budget,
        smallest_difference=standing.rules.smallest_difference,
        settings=field.settings,
        remarks=_remarks(standing),
    )


def _raced_job(standing: _Standing, contestant: Contestant) -> RacedJob:
    values = standing.values(contestant)
    mean = math.fsum(values) / len(values)
    return RacedJob(name=contestant.name, values=values, mean=mean)


def _remarks(standing: _Standing) -> list[str]:
    field = standing.field
    remarks = [field.figure_remark] if field.figure_remark else []
    remarks += job_groups.other_tasks_remarks(field.by, field.settings)
    if field.chooser.noun:
        remarks.append(
            "Only seeds that were trained for the race count:"
            f" {field.chooser.flattery(field.run_dir)}."
        )
    remarks += [
        f"{one.name}: {_seeds_are(one.left_out)} trained with other settings, and left out."
        for one in field.both
        if one.left_out
    ]
    without = [seed for seed in standing.tried if seed not in standing.seeds]
    if without:
        remarks.append(
            f"{_seeds_are(without)} left out for both, as one has no value: what is compared are"
            " trainings that succeed."
        )
    if len(standing.budgets) > 1:
        declared = ", then ".join(map(str, standing.budgets))
        error = f"{len(standing.budgets) * sequential.ERROR:.0%}"
        remarks.append(
            f"The budget was raised ({declared} seeds): chance decides wrongly in up to {error} of"
            " such races, not in 5 %."
        )
    return remarks


def _seeds_are(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {_numbers(seeds)}"
