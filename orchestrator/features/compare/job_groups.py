"""Jobs of one run directory compared with each other: ``compare RUN --jobs A,B --by FIGURE``.

A *group* is what a name means: a job over its seeds, or, of a pattern with one ``*``, several bodies
over theirs. Bodies of two groups belong together where ``*`` stands for the same text, so that
``ppo-*,sac-*`` compares two algorithms over the same bodies. Read-only.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import two_groups
from orchestrator.analysis.two_groups import Figure, TwoGroups
from orchestrator.core.errors import UsageError
from orchestrator.core.text import count, listed
from orchestrator.experiment.from_outside import control
from orchestrator.features.compare import comparison
from orchestrator.jobfile.job_names import without_seed
from orchestrator.keys.problems import suggestion
from orchestrator.ledger import JobRow, SummaryRow
from orchestrator.ledger.rows import fitness

EVALUATION = "eval_mean"
TRAINING = "ep_rew_mean"
NAMES_SHOWN = 5
ANY_TEXT = "*"
ENOUGH_SEEDS = 5
"""With so many seeds in both groups, p can be far below 0.05."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a value was measured after. Values of other protocols are not comparable."""

    env_steps: int
    """Of the training itself."""
    earlier_env_steps: int
    """Of the jobs from whose policies it started, one after another."""

    def __str__(self) -> str:
        text = f"{self.env_steps:,} env_steps"
        earlier = f"{self.earlier_env_steps:,} of the policy that it started from"
        return f"{text} after {earlier}" if self.earlier_env_steps else f"{text} from nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The jobs that one name means, with their values."""

    name: str
    bodies: Mapping[str, Sequence[float]]
    """Body → the value of each of its seeds that has succeeded. The body is what ``*`` stands for,
    and empty for a name without it."""
    missing: int
    """Jobs without a value: they have not succeeded, or not reported it."""
    protocols: Sequence[Protocol]
    """All that occur, the most env_steps first."""

    @property
    def seeds(self) -> int:
        """The fewest of a body."""
        return min(map(len, self.bodies.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One group by itself."""

    name: str
    values: Mapping[str, Sequence[float]]
    mean: Figure
    interquartile_mean: Figure
    missing: int
    protocols: Sequence[Protocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstFirst:
    """Another group compared with the first."""

    name: str
    figures: TwoGroups
    bodies: Sequence[str]
    """The bodies that both have, over which they were compared."""
    left_out: Sequence[str]
    """Bodies that only one of them has."""
    settings: Sequence[tuple[str, str, str]]
    """Settings that differ: the key, the value of the first group, the value of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobComparison:
    """Groups of jobs of one run directory, compared by one figure.

    :ivar by: the figure: a measure, ``eval_mean`` or ``ep_rew_mean``.
    :ivar groups: each by itself, in the order in which they were named.
    :ivar others: each but the first compared with the first.
    :ivar remarks: what has to be known to trust the comparison.
    """

    run_dir: Path
    by: str
    groups: Sequence[GroupFigures]
    others: Sequence[AgainstFirst]
    remarks: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """The content of ``--json``."""
        settings = [
            [{"what": key, "a": a, "b": b} for key, a, b in other.settings] for other in self.others
        ]
        facts = asdict(self)
        for other, differences in zip(facts["others"], settings, strict=True):
            other["settings"] = differences
        return {**facts, "run_dir": str(self.run_dir)}


def compare(
    run_dir: str | os.PathLike[str], jobs: Sequence[str], by: str | None = None
) -> JobComparison:
    """Compare jobs of a run directory over their seeds, each with the first.

    ``orchestrator.compare("runs/bodies", ["parent", "child"], by="distance_m").others[0].figures``
    has the difference and ratio of means and the probability that a training of the child is
    higher, with their intervals and the methods of these, and p of a permutation test.

    :param jobs: names of jobs without their seeds, at least two. A name with one ``*`` means
        several bodies: ``["ppo-*", "sac-*"]`` compares two algorithms over the bodies that both
        have.
    :param by: a measure, ``eval_mean`` or ``ep_rew_mean``; None: the return of the evaluation, or
        that of training where there was none.
    :raises UsageError: it is no run directory, a name means no job, there is no such figure, or no
        job of a group has it.
    """
    run_dir = Path(run_dir)
    names = list(jobs)
    if len(names) < 2:
        raise UsageError(
            f"{run_dir}: --jobs: expected two or more names of jobs, separated by commas, found"
            f" {len(names)}"
        )
    if repeated := [name for place, name in enumerate(names) if name in names[:place]]:
        raise UsageError(f"{run_dir}: --jobs: {repeated[0]} is named twice")
    snapshot = control.status(run_dir)
    rows = snapshot.rows
    figure = _figure_asked_for(run_dir, rows, by)
    declared = {row.job_id: row for row in comparison.declared_jobs(snapshot.paths)}
    groups = [_group(run_dir, name, rows, figure, declared) for name in names]
    settings = comparison.settings_of_cases(declared.values())
    others = [
        _against_first(run_dir, groups[0], group, settings, _cases(rows)) for group in groups[1:]
    ]
    return JobComparison(
        run_dir=run_dir,
        by=figure or EVALUATION,
        groups=[_figures_of(group) for group in groups],
        others=others,
        remarks=_remarks(groups),
    )


def _figure_asked_for(run_dir: Path, rows: Sequence[SummaryRow], by: str | None) -> str | None:
    if by is None or by in (EVALUATION, TRAINING):
        return by
    measures = {name for row in rows for name in row["measures"] or {}}
    if by in measures:
        return by
    known = sorted({*measures, EVALUATION, TRAINING})
    near = suggestion(by, known)
    hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
    raise UsageError(f"{run_dir}: --by: no job has reported {by}; {hint}")


def _value(row: SummaryRow, figure: str | None) -> float | None:
    """None where there is none, or no finite one."""
    if row["state"] != "SUCCEEDED":
        return None
    if figure is None:
        value = fitness(row["eval_mean"], row["ep_rew_mean"])
    elif figure == EVALUATION:
        value = row["eval_mean"]
    elif figure == TRAINING:
        value = row["ep_rew_mean"]
    else:
        value = (row["measures"] or {}).get(figure)
    return value if value is not None and math.isfinite(value) else None


def _cases(rows: Sequence[SummaryRow]) -> dict[str, list[SummaryRow]]:
    """Rows by the name of their job without its seed."""
    cases: dict[str, list[SummaryRow]] = {}
    for row in rows:
        cases.setdefault(without_seed(row["job_id"], row["seed"]), []).append(row)
    return cases


def _bodies_named(name: str, cases: Mapping[str, Any]) -> dict[str, str]:
    """Body → case, of those that ``name`` means."""
    if name in cases:
        return {"": name}
    if name.count(ANY_TEXT) != 1:
        return {}
    before, after = map(re.escape, name.split(ANY_TEXT))
    pattern = re.compile(f"{before}(.*){after}", re.DOTALL)
    found = {case: pattern.fullmatch(case) for case in cases}
    return {match[1]: case for case, match in found.items() if match is not None}


def _group(
    run_dir: Path,
    name: str,
    rows: Sequence[SummaryRow],
    figure: str | None,
    declared: Mapping[str, JobRow],
) -> Group:
    cases = _cases(rows)
    bodies = _bodies_named(name, cases)
    if not bodies:
        near = suggestion(name, list(cases))
        hint = f"did you mean {near}?" if near else f"jobs here: {listed(list(cases), NAMES_SHOWN)}"
        what = "is no job, nor a pattern with one * that fits any"
        raise UsageError(f"{run_dir}: --jobs: {name} {what}; {hint}")
    values: dict[str, Sequence[float]] = {}
    missing = 0
    for body, case in bodies.items():
        found = [_value(row, figure) for row in cases[case]]
        known = [value for value in found if value is not None]
        missing += len(found) - len(known)
        if known:
            values[body] = known
    if not values:
        states = ", ".join(
            sorted({row["state"] for case in bodies.values() for row in cases[case]})
        )
        raise UsageError(
            f"{run_dir}: {name}: none of its {count(missing, 'job')} ({states}) has a value of"
            f" {figure or EVALUATION}; jobs that have succeeded have one"
        )
    trained = [
        row["job_id"]
        for case in bodies.values()
        for row in cases[case]
        if _value(row, figure) is not None
    ]
    return Group(
        name=name,
        bodies=values,
        missing=missing,
        protocols=_protocols(trained, {row["job_id"]: row for row in rows}, declared),
    )


def _protocols(
    job_ids: Sequence[str], rows: Mapping[str, SummaryRow], declared: Mapping[str, JobRow]
) -> list[Protocol]:
    protocols = {
        Protocol(
            env_steps=rows[job_id]["env_steps"] or 0,
            earlier_env_steps=_earlier_env_steps(job_id, rows, declared),
        )
        for job_id in job_ids
    }
    return sorted(protocols, key=lambda one: (one.env_steps, one.earlier_env_steps), reverse=True)


def _earlier_env_steps(
    job_id: str, rows: Mapping[str, SummaryRow], declared: Mapping[str, JobRow]
) -> int:
    """Of the jobs of this run directory from whose policies it started, one after another."""
    total = 0
    seen = {job_id}
    source = _source_of(job_id, declared)
    while source is not None and source in rows and source not in seen:
        seen.add(source)
        total += rows[source]["env_steps"] or 0
        source = _source_of(source, declared)
    return total


def _source_of(job_id: str, declared: Mapping[str, JobRow]) -> str | None:
    row = declared.get(job_id)
    return None if row is None else row.job.spec.init_job


def _against_first(
    run_dir: Path,
    first: Group,
    other: Group,
    settings: Mapping[str, Mapping[str, Any]],
    cases: Mapping[str, Any],
) -> AgainstFirst:
    common = [body for body in first.bodies if body in other.bodies]
    if not common:
        raise UsageError(
            f"{run_dir}: {first.name} and {other.name} have no body in common:"
            f" {_bodies_text(first)} and {_bodies_text(other)}"
        )
    left_out = [body for body in (*first.bodies, *other.bodies) if body not in common]
    a = _bodies_named(first.name, cases)
    b = _bodies_named(other.name, cases)
    return AgainstFirst(
        name=other.name,
        figures=two_groups.compare(
            [first.bodies[body] for body in common], [other.bodies[body] for body in common]
        ),
        bodies=common,
        left_out=sorted(set(left_out)),
        settings=comparison.differing_settings(
            {body: settings.get(a[body], {}) for body in common},
            {body: settings.get(b[body], {}) for body in common},
        ),
    )


def _bodies_text(group: Group) -> str:
    return listed([body or "no *" for body in group.bodies], NAMES_SHOWN)


def _figures_of(group: Group) -> GroupFigures:
    strata = list(group.bodies.values())
    return GroupFigures(
        name=group.name,
        values=group.bodies,
        mean=two_groups.mean(strata),
        interquartile_mean=two_groups.interquartile_mean(strata),
        missing=group.missing,
        protocols=group.protocols,
    )


def _remarks(groups: Sequence[Group]) -> list[str]:
    remarks = []
    for group in groups:
        if group.missing:
            remarks.append(f"{group.name}: {count(group.missing, 'job')} without a value left out.")
    if len({protocol for group in groups for protocol in group.protocols}) > 1:
        each = "; ".join(
            f"{group.name}: {', or '.join(map(str, group.protocols))}" for group in groups
        )
        remarks.append(
            f"The values were not reached alike, so a difference may be one of training: {each}."
        )
    fewest = min(group.seeds for group in groups)
    if fewest == 1:
        remarks.append(
            "With one seed, nothing can be said about chance: another seed may reverse the order."
            f" Train {ENOUGH_SEEDS} or more: seeds = [0, 1, 2, 3, 4]."
        )
    elif fewest < ENOUGH_SEEDS:
        remarks.append(
            f"{fewest} seeds tell only large differences from chance; train {ENOUGH_SEEDS} or more."
        )
    return remarks
