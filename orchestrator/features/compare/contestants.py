"""The two jobs of a race, as a run directory has them: what is trained again with further seeds,
and the values that count. Read-only.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis.job_values import EVALUATION, TRAINING
from orchestrator.client import run_snapshot
from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.job import TERMINAL, Job
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import count, listed
from orchestrator.core.worker_spec import FROM_NOTHING, WorkerSpec
from orchestrator.examination.preflight import JobVerdict
from orchestrator.features.compare import (
    chosen_jobs,
    compared_figure,
    declared_settings,
    job_groups,
)
from orchestrator.features.compare.chosen_jobs import Chooser
from orchestrator.features.compare.declared_settings import Difference
from orchestrator.features.compare.equal_trainings import (
    identity_of_row,
    start_policy,
    training_but_for_seed,
)
from orchestrator.features.compare.job_groups import Cases
from orchestrator.features.compare.sequential import LEAST_SEEDS
from orchestrator.jobfile.job_names import with_seed
from orchestrator.ledger import JobRow, SummaryRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What counts of a run directory, and where trainings begin."""

    is_fresh: bool
    """Only seeds that are trained for the race count."""
    from_nothing: bool
    """Both jobs begin with random weights, whatever they are declared to start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One job of a race, whose seeds differ in nothing else."""

    name: str
    """Its id without the seed."""
    template: JobRow
    """One of its jobs, which the further ones are made of."""
    directory: JobPaths
    """Of the template: its robot, and the policy that it started from."""
    from_nothing: bool
    values: Mapping[int, float | None]
    """Seed → its value; None: it was trained, and has none. Only what counts."""
    left_out: Sequence[int]
    """Seeds that were trained otherwise than the template."""

    @property
    def start(self) -> str | None:
        """SHA-256 of the policy that its trainings begin with; None: with random weights."""
        return None if self.from_nothing else start_policy(self.template)

    def job_id(self, seed: int) -> str:
        return with_seed(self.name, seed)

    def job(self, seed: int) -> Job:
        """Its training with a seed, from the robot and policy in the template's directory."""
        spec = self.template.job.spec
        start: dict[str, Any] = dict(FROM_NOTHING)
        if self.start is not None:
            start |= {  # the names in this file are those of the job already
                "init": str(self.directory.init.absolute()),
                "init_sha256": self.start,
                "init_env_steps": spec.init_env_steps,
            }
        made = self.template.job.with_spec(
            job_id=self.job_id(seed),
            seed=seed,
            pause_at=None,
            extended_from=(),
            after=(),
            measure_training=False,
            preview=False,
            video=False,
            **start,
        )
        xml = None if spec.xml is None else (self.directory.root / spec.xml).absolute()
        return dataclasses.replace(made, job_id=made.spec.job_id, xml_source=xml)

    def verdict(self) -> JobVerdict:
        """That of preflight on :meth:`job`, for the robot was examined when the template was."""
        xml = self.template.job.spec.xml
        return JobVerdict(
            bundle=None if xml is None else self.directory.robot,
            xml=None if xml is None else xml.removeprefix("robot/"),
            robot_hash=self.template.robot_hash,
            init=None if self.start is None else self.directory.init,
            init_sha256=self.start,
            init_env_steps=None if self.start is None else self.template.job.spec.init_env_steps,
        )

    def trains(self, row: JobRow) -> bool:
        """Whether a job of the race is the same training as :meth:`job`."""
        own = self.job(row.job.spec.seed).spec
        of_row = training_but_for_seed(row.job.spec, row.job.spec.init_sha256)
        is_alike = of_row == training_but_for_seed(own, own.init_sha256)
        return is_alike and row.robot_hash == self.template.robot_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Both jobs of a race."""

    run_dir: Path
    by: str
    """The figure that they are compared by: a measure, a column or an expression of them."""
    first: Contestant
    second: Contestant
    settings: Sequence[Difference]
    """What they are trained with, where that differs: A is the first, B the second."""
    seeds_of_run: Collection[int]
    """All that the run directory has, of whatever job: those of another one may be of the same
    body, as where a search has trained it again."""
    is_fresh: bool
    """Whether only seeds count that no job of the run directory has had."""
    chooser: Chooser
    """What has chosen jobs by their values in the run directory, so that only fresh seeds count."""
    figure_remark: str
    """Why they are compared by :attr:`by`; empty where that was named, or is the return."""

    @property
    def both(self) -> tuple[Contestant, Contestant]:
        return self.first, self.second

    @property
    def declared_seeds(self) -> Sequence[int]:
        """Those of the run directory that count for one of both at least, rising."""
        return sorted({*self.first.values, *self.second.values})

    @property
    def first_new_seed(self) -> int:
        return 1 + max(self.seeds_of_run)

    def counts_in_race(self, seed: int, noted: Collection[int]) -> bool:
        """Whether a seed that was trained for the race counts: not where only fresh ones do, and
        the run directory has had it.

        :param noted: seeds that were fresh when the race began them.
        """
        return not self.is_fresh or seed in noted or seed not in self.seeds_of_run


def read(run_dir: Path, names: Sequence[str], by: str | None, conditions: Conditions) -> Field:
    """Read the two jobs of a race from their run directory.

    :param names: of jobs, as :func:`.job_groups.names_without_seeds` takes them.
    :raises UsageError: these jobs cannot be raced.
    """
    if len(names) != 2:
        raise UsageError(f"{run_dir}: a race is between two jobs, found {len(names)}")
    snapshot = run_snapshot.status(run_dir)
    declared = {row.job_id: row for row in declared_settings.declared_jobs(snapshot.paths)}
    cases = job_groups.cases_of(snapshot.rows)
    names = job_groups.names_without_seeds(run_dir, names, cases)
    for name in names:
        _refuse_several(run_dir, name, cases)
    chooser = chosen_jobs.chooser(snapshot.paths, with_objectives=by is None)
    conditions = dataclasses.replace(conditions, is_fresh=conditions.is_fresh or bool(chooser.noun))
    first, second = (
        _contestant(snapshot.paths, name, cases[name], declared, conditions) for name in names
    )
    _refuse_other_protocols(run_dir, first, second)
    objective = chooser.figure if by is None else None
    figure = _figure(run_dir, by, objective, (first, second), snapshot.rows)
    for one in (first, second):
        _refuse_without_value(run_dir, one, cases[one.name], figure)
    if not conditions.is_fresh:
        _refuse_unfinished(run_dir, (first, second), cases)
    return Field(
        run_dir=run_dir,
        by=figure,
        first=_with_values(first, cases[first.name], figure),
        second=_with_values(second, cases[second.name], figure),
        settings=declared_settings.differing_settings(
            {"": _settings(first)}, {"": _settings(second)}
        ),
        seeds_of_run={row["seed"] for row in snapshot.rows},
        is_fresh=conditions.is_fresh,
        chooser=chooser,
        figure_remark=chooser.figure_remark() if objective is not None else "",
    )


def _refuse_several(run_dir: Path, name: str, cases: Cases) -> None:
    """:raises UsageError: it means no job, or several bodies."""
    if name in cases:
        return
    bodies = job_groups.bodies_named(run_dir, name, cases)
    raise UsageError(
        f"{run_dir}: {option('jobs')}: a race is between two jobs, and {name} means"
        f" {listed(list(bodies.values()))}; name one of them"
    )


def _contestant(
    paths: RunPaths,
    name: str,
    rows: Sequence[SummaryRow],
    declared: Mapping[str, JobRow],
    conditions: Conditions,
) -> Contestant:
    """Without its values: of which seeds they count is in ``values``.

    :raises UsageError: it cannot be trained with further seeds.
    """
    in_order = sorted(rows, key=lambda row: (row["state"] != "SUCCEEDED", row["seed"]))
    template = declared[in_order[0]["job_id"]]
    own = identity_of_row(template, from_nothing=conditions.from_nothing)
    like: dict[int, float | None] = {}
    left_out: list[int] = []
    jobs = [_with_policy(declared[row["job_id"]], template) for row in rows]
    for job in sorted(jobs, key=lambda job: job.job.spec.seed):
        spec = job.job.spec
        begins_otherwise = conditions.from_nothing and spec.init is not None
        if conditions.is_fresh or begins_otherwise:
            continue
        if identity_of_row(job, from_nothing=conditions.from_nothing) == own:
            like[spec.seed] = None
        else:
            left_out.append(spec.seed)
    contestant = Contestant(
        name=name,
        template=template,
        directory=paths.job(template.job_id),
        from_nothing=conditions.from_nothing,
        values=like,
        left_out=left_out,
    )
    _refuse_untrainable(paths, contestant, jobs)
    return contestant


def _with_policy(row: JobRow, template: JobRow) -> JobRow:
    """``row`` with the SHA-256 of the policy that ``template`` started from, where both start from
    the same job: one that was never launched has none yet.
    """
    spec = row.job.spec
    of_template = template.job.spec
    if spec.init_sha256 is not None or spec.init != of_template.init:
        return row
    with_policy = row.job.with_spec(init_sha256=of_template.init_sha256)
    return dataclasses.replace(row, job=with_policy)


def _refuse_untrainable(paths: RunPaths, contestant: Contestant, jobs: Sequence[JobRow]) -> None:
    """:raises UsageError: there is no robot or policy to train further seeds with."""
    name = contestant.name
    spec = contestant.template.job.spec
    if (refusal := contestant.template.refusal) is not None:
        raise UsageError(
            f"{paths.root}: {name}: is invalid, so no seed of it can be trained: {refusal}"
        )
    if spec.xml is not None and not (contestant.directory.root / spec.xml).is_file():
        raise UsageError(
            f"{paths.root}: {name}: its robot is not in {contestant.directory.robot} any more,"
            " so further seeds cannot be trained; restore that folder"
        )
    if contestant.from_nothing or spec.init is None:
        return
    policies = {start_policy(job) for job in jobs if job.job.spec.init is not None}
    if len(policies) > 1:
        raise UsageError(
            f"{paths.root}: {name}: each of its seeds started from a policy of its own, and further"
            f" seeds have none; {option('from_nothing', True)} trains both jobs from nothing"
        )
    if spec.init_sha256 is None or not contestant.directory.init.is_file():
        raise UsageError(
            f"{paths.root}: {name}: {contestant.directory.init}, the policy that it started from,"
            f" is not there; {option('from_nothing', True)} trains both jobs from nothing"
        )


def _refuse_other_protocols(run_dir: Path, first: Contestant, second: Contestant) -> None:
    """:raises UsageError: values of both would not mean the same."""
    if first.start != second.start:
        each = "; ".join(f"{one.name} starts from {_start_text(one)}" for one in (first, second))
        raise UsageError(
            f"{run_dir}: {each}: what differs might be that;"
            f" {option('from_nothing', True)} trains both from nothing"
        )
    specs = first.template.job.spec, second.template.job.spec
    for what, of in (
        ("total_timesteps", lambda spec: f"{spec.total_timesteps:,}"),
        ("task", _task),
    ):
        values = [of(spec) for spec in specs]
        if values[0] != values[1]:
            each = f"{first.name}: {values[0]}; {second.name}: {values[1]}"
            raise UsageError(
                f"{run_dir}: a race needs jobs with the same {what}, or their values do not mean"
                f" the same ({each}); declare a job that has it, and train that"
            )


def _settings(contestant: Contestant) -> Mapping[str, Any]:
    """Without its seeds, which are those of the race, and with the start that it has there."""
    template = contestant.template
    if contestant.from_nothing:
        template = dataclasses.replace(template, job=template.job.with_spec(**FROM_NOTHING))
    (settings,) = declared_settings.settings_of_cases([template]).values()
    return {key: value for key, value in settings.items() if key != "seeds"}


def _start_text(contestant: Contestant) -> str:
    init = contestant.template.job.spec.init
    return "nothing" if contestant.start is None else f"the policy of {init}"


def _task(spec: WorkerSpec) -> str:
    return spec.entry_point or spec.env or spec.task or ""


def _figure(
    run_dir: Path,
    by: str | None,
    objective: str | None,
    both: tuple[Contestant, Contestant],
    rows: Sequence[SummaryRow],
) -> str:
    """What they are compared by: ``by``, or ``objective``, or their return.

    :param rows: of all jobs of the run directory.
    :raises UsageError: not both will have it.
    """
    without = [one.name for one in both if not one.template.job.spec.eval_episodes]
    if by is not None:
        figure = compared_figure.checked_figure(run_dir, by, rows)
    elif objective is not None:
        figure = objective
    else:
        return TRAINING if without else EVALUATION
    if without and _is_of_evaluation(figure, rows):
        raise UsageError(
            f"{run_dir}: {option('by')}: {without[0]} is not evaluated (eval_episodes = 0), so it"
            f" has no {figure}; {option('by', TRAINING)} compares the returns of training"
        )
    return figure


def _is_of_evaluation(figure: str, rows: Sequence[SummaryRow]) -> bool:
    """Whether it is a measure, or another figure of episodes of the evaluation, or computed from
    one.

    :param rows: of all jobs of the run directory; what a matrix varies is among their columns.
    """
    columns = {*SummaryRow.__annotations__, *(name for row in rows for name in row)}
    of_training = columns - {EVALUATION, "eval_s"}
    return any(name not in of_training for name in compared_figure.names_in(figure))


def _refuse_without_value(
    run_dir: Path, contestant: Contestant, rows: Sequence[SummaryRow], figure: str
) -> None:
    """:raises UsageError: several of its jobs have succeeded without a value, as further ones will."""
    if contestant.from_nothing and start_policy(contestant.template) is not None:
        return  # it has not been trained so yet
    succeeded = [row for row in rows if row["state"] == "SUCCEEDED"]
    values = [compared_figure.value_of(row, figure) for row in succeeded]
    if len(succeeded) >= LEAST_SEEDS and all(value is None for value in values):
        without = compared_figure.without_value(rows, figure)
        raise UsageError(
            f"{run_dir}: {contestant.name}: {without}; race them by another figure ({option('by')})"
        )


def _refuse_unfinished(run_dir: Path, both: tuple[Contestant, Contestant], cases: Cases) -> None:
    """:raises UsageError: seeds that count are still trained, or wait for that."""
    for one in both:
        left = [row for row in cases[one.name] if row["seed"] in one.values]
        left = [row for row in left if row["state"] not in TERMINAL]
        if left:
            states = listed(sorted({row["state"] for row in left}))
            job_ids = [row["job_id"] for row in left]
            cancel = shlex.join(["orchestrator", "stop", str(run_dir), *job_ids])
            raise UsageError(
                f"{run_dir}: {one.name}: {count(len(left), 'seed is', 'seeds are')} not trained to"
                f" the end ({states}), and a race counts them: let `run` end first, or cancel"
                f" them: `{cancel}`; {option('fresh_seeds', True)} counts none of this run directory"
            )


def _with_values(contestant: Contestant, rows: Sequence[SummaryRow], figure: str) -> Contestant:
    values = {
        row["seed"]: compared_figure.value_of(row, figure)
        for row in rows
        if row["seed"] in contestant.values and row["state"] != "CANCELLED"
    }
    return dataclasses.replace(contestant, values=values)
