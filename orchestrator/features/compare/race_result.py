"""What a race has shown."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.analysis.statistics import Estimate
from orchestrator.analysis.statistics_text import difference_text, short_number
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import option
from orchestrator.core.job import TERMINAL
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count, listed
from orchestrator.experiment import run_directory
from orchestrator.features.compare import race_notes, sequential
from orchestrator.features.compare.contestants import Contestant
from orchestrator.features.compare.declared_settings import Difference
from orchestrator.features.compare.paid_otherwise import other_tasks_remarks
from orchestrator.features.compare.race_standing import Standing
from orchestrator.features.compare.sequential import Look, Outcome


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

    Printed, it is its :attr:`sentence` and remarks.
    """

    run_dir: Path
    race_dir: Path
    by: str
    jobs: Sequence[RacedJob]
    seeds: Sequence[int]
    trained: int
    outcome: Outcome
    difference: Estimate
    p: float | None
    most_seeds: int
    smallest_difference: float | None
    settings: Sequence[Difference] = ()
    remarks: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """The content of ``--json``."""
        return {**asdict(self), "run_dir": str(self.run_dir), "race_dir": str(self.race_dir)}

    @property
    def sentence(self) -> str:
        """Who is better, by how much, and after how many seeds, for people."""
        first, second = self.jobs
        after = f"after {count(len(self.seeds), 'seed')} each"
        found = f"{second.name} is {difference_text(self.difference, first.name)}"
        if self.p is not None:
            sign = "≤" if self.p <= sequential.LEAST_P else "="
            found += f", p {sign} {self.p:.2g}"
        if self.outcome == "not decided":
            return f"Not decided {after}: {found}."
        if self.outcome == "no difference":
            assert self.smallest_difference is not None
            limit = short_number(self.smallest_difference)
            return f"No difference above {limit}, decided {after}: {found}."
        return f"{found}, decided {after}."

    def __str__(self) -> str:
        return "\n".join([self.sentence, *self.remarks])


def result_of(standing: Standing, look: Look) -> RaceResult:
    field = standing.field
    return RaceResult(
        run_dir=field.run_dir,
        race_dir=standing.race_dir,
        by=field.by,
        jobs=[_raced_job(standing, one) for one in field.both],
        seeds=standing.seeds,
        trained=sum(row["state"] in TERMINAL for row in standing.raced.values()),
        outcome=look.outcome,
        difference=look.difference,
        p=look.p,
        most_seeds=standing.budget,
        smallest_difference=standing.rules.smallest_difference,
        settings=field.settings,
        remarks=[*_remarks(standing), *_advice(standing, look)],
    )


def _raced_job(standing: Standing, contestant: Contestant) -> RacedJob:
    values = standing.values(contestant)
    mean = math.fsum(values) / len(values)
    return RacedJob(name=contestant.name, values=values, mean=mean)


def _advice(standing: Standing, look: Look) -> list[str]:
    """What else could be asked where the budget has not decided it."""
    if look.outcome != "not decided":
        return []
    advice = f"The budget of {standing.budget} seeds is spent."
    if standing.rules.smallest_difference is None:
        smallest = option("smallest_difference")
        advice += (
            f" With {smallest}, that there is none above a size that matters is an answer, too: take"
            " what matters to you, whatever these values are."
        )
    return [advice]


def _remarks(standing: Standing) -> list[str]:
    field = standing.field
    remarks = [field.figure_remark] if field.figure_remark else []
    remarks += other_tasks_remarks([field.by], field.settings)
    if field.chooser.noun:
        remarks.append(
            f"Only seeds that were trained for the race count: {field.chooser.bias(field.run_dir)}."
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
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {numbers(seeds)}"


def numbers(seeds: Sequence[int]) -> str:
    return listed([str(seed) for seed in seeds])


def noted(found: RaceResult) -> RaceResult:
    """``found``, which is recorded with its budget in the race's run directory, if there is one, for
    its report and for what a larger budget means later. Where it cannot be, as in a directory of
    somebody else, that is one more remark.
    """
    if not run_directory.is_run_directory(RunPaths(found.race_dir)):
        return found
    path = found.race_dir / race_notes.RESULTS
    recorded = run_reader.read_json_object(path) or {}
    results = json.dumps({**recorded, found.by: found.facts()})
    try:
        race_notes.note_budget(found.race_dir, found.by, found.most_seeds)
        if results != json.dumps(recorded):
            write_whole(path, f"{results}\n")
    except OSError as error:
        remark = f"{path} cannot be written, so the report of the race does not have this: {error.strerror}."
        return dataclasses.replace(found, remarks=[*found.remarks, remark])
    return found
