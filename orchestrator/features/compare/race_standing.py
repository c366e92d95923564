"""How a race stands: which seeds both jobs have been trained with, and what their values say."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.client import run_snapshot
from orchestrator.core.errors import UsageError
from orchestrator.core.job import TERMINAL, Job
from orchestrator.core.paths import RunPaths
from orchestrator.experiment import run_directory
from orchestrator.features.compare import compared_figure, declared_settings, race_notes, sequential
from orchestrator.features.compare.contestants import Contestant, Field
from orchestrator.features.compare.sequential import LEAST_SEEDS, Look, Rules
from orchestrator.ledger import SummaryRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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

    def limited_to(self, budgets: Sequence[int]) -> Standing:
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
        return None if row is None else compared_figure.value_of(row, self.field.by)

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


def read(field: Field, race_dir: Path, rules: Rules) -> Standing:
    """:raises UsageError: the race's run directory has other trainings."""
    raced: Mapping[str, SummaryRow] = {}
    declared: Sequence[Job] = ()
    budgets: Sequence[int] = ()
    paths = RunPaths(race_dir)
    # One that was stopped before it had a ledger has nothing to read, and is used again.
    if paths.ledger.exists() or run_directory.holder(paths) is not None:
        snapshot = run_snapshot.status(race_dir)
        _refuse_running(race_dir, snapshot)
        rows = declared_settings.declared_jobs(snapshot.paths)
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
        budgets = race_notes.noted_budgets(race_dir, field.by)
    standing = Standing(
        field=field,
        race_dir=race_dir,
        rules=rules,
        budget=rules.most_seeds,
        budgets=budgets,
        fresh=race_notes.noted_fresh(race_dir),
        raced=raced,
        declared=declared,
    )
    if budgets and _is_decided(before := standing.limited_to(budgets)):
        return before
    return standing.limited_to(race_notes.raised(budgets, rules.most_seeds))


def _is_decided(standing: Standing) -> bool:
    look = standing.look()
    return look is not None and look.outcome in sequential.DECISIONS


def _refuse_running(race_dir: Path, snapshot: run_snapshot.Snapshot) -> None:
    """:raises UsageError: another process trains its seeds."""
    if snapshot.holder is not None:
        raise UsageError(
            f"{race_dir}: another process trains the seeds of this race ({snapshot.holder}):"
            f" `attach {race_dir}` follows it, `stop {race_dir}` stops it"
        )
