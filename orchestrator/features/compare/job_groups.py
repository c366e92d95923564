"""Jobs of one run directory compared with each other: ``compare RUN --jobs A,B --by FIGURE``.

A *group* is what a name means: a job over its seeds, or, of a pattern with one ``*``, several bodies
over theirs. Bodies of two groups belong together where ``*`` stands for the same text, so that
``ppo-*,sac-*`` compares two algorithms over the same bodies. Read-only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.analysis.statistics import (
    Estimate,
    TwoGroups,
    compare,
    estimate,
    interquartile_mean,
    one_value_each,
)
from orchestrator.analysis.statistics_text import (
    SIGNIFICANT,
    chance_text,
    difference_text,
    short_number,
)
from orchestrator.client import run_snapshot
from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.text import count, listed
from orchestrator.features.compare import chosen_jobs, compared_figure
from orchestrator.features.compare.chosen_jobs import Chooser
from orchestrator.features.compare.compared_figure import checked_figure, default_figure, value_of
from orchestrator.features.compare.declared_settings import (
    Difference,
    declared_jobs,
    differing_settings,
    jobs_of_cases,
    settings_of_cases,
)
from orchestrator.features.compare.equal_trainings import seeds_trained_otherwise
from orchestrator.features.compare.paid_otherwise import other_tasks_remarks
from orchestrator.features.compare.protocols import (
    Protocol,
    Protocols,
    longest_first,
    protocol_of,
    remark_on_protocols,
)
from orchestrator.jobfile.job_names import without_seed
from orchestrator.keys.problems import suggestion
from orchestrator.ledger import JobRow, SummaryRow

ANY_TEXT = "*"
ENOUGH_SEEDS = 5
"""With so many seeds in both groups, p can be far below 0.05."""

Cases: TypeAlias = Mapping[str, Sequence[SummaryRow]]
"""The name of a job without its seed → its rows, one for each seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The jobs that one name means, with their values."""

    name: str
    cases: Mapping[str, str]
    """Body → the name of its jobs without their seeds. The body is what ``*`` stands for, and empty
    for a name without it."""
    values: Mapping[str, Sequence[float]]
    """Body → the value of each of its seeds that has one; bodies without any are left out."""
    missing: Counter[str]
    """Body → the number of its jobs without a value: they have not succeeded, or not reported it."""
    protocols: Protocols
    """Body → how its values were reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One group by itself, over the bodies that all groups have."""

    name: str
    values: Mapping[str, Sequence[float]]
    mean: Estimate
    interquartile_mean: Estimate
    missing: int
    """Jobs without a value."""
    protocols: Sequence[Protocol]
    """All that occur, the most env_steps first."""

    @property
    def fewest_seeds(self) -> int:
        """Of a body."""
        return min(map(len, self.values.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstFirst:
    """Another group compared with the first."""

    name: str
    figures: TwoGroups
    settings: Sequence[Difference]
    """Settings that differ: A is the first group, B this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobComparison:
    """Groups of jobs of one run directory, compared by one figure.

    :ivar by: the figure: a measure, a column such as ``eval_mean``, or an expression of them.
    :ivar bodies: over which they were compared: those that all groups have.
    :ivar groups: each by itself, in the order in which they were named.
    :ivar others: each but the first compared with the first.
    :ivar remarks: what has to be known to trust the comparison.

    Printed, it is its :meth:`sentences` and remarks.
    """

    run_dir: Path
    by: str
    bodies: Sequence[str]
    groups: Sequence[GroupFigures]
    others: Sequence[AgainstFirst]
    remarks: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """The content of ``--json``."""
        return {**asdict(self), "run_dir": str(self.run_dir)}

    def sentences(self, other: AgainstFirst) -> list[str]:
        """How one of :attr:`others` differs from the first, for people."""
        first = self.groups[0].name
        figures = other.figures
        number = len(self.bodies)
        over = f", over {number} bodies" if number > 1 else ""
        lines = [
            f"{other.name} is {difference_text(figures.difference, first)}{over};"
            f" {chance_text(figures)}."
        ]
        if figures.p is not None:
            lines.append(
                f"A training of {other.name} is higher than one of {first} with probability"
                f" {short_number(figures.probability_higher)}."
            )
        return lines

    def __str__(self) -> str:
        lines = [line for other in self.others for line in self.sentences(other)]
        return "\n".join([f"Compared by {self.by}:", *lines, *self.remarks])


def compare_jobs(run_dir: Path, names: Sequence[str], by: str | None) -> JobComparison:
    """As :func:`orchestrator.compare` without a race; messages are spelled for whoever has asked."""
    if len(names) < 2:
        raise UsageError(
            f"{run_dir}: {option('jobs')}: expected two or more names of jobs, found {len(names)}"
        )
    snapshot = run_snapshot.status(run_dir)
    declared = {row.job_id: row for row in declared_jobs(snapshot.paths)}
    cases = cases_of(snapshot.rows)
    names = names_without_seeds(run_dir, names, cases)
    bodies = {name: bodies_named(run_dir, name, cases) for name in names}
    chooser = chosen_jobs.chooser(snapshot.paths, with_objectives=by is None)
    named = [row for of_group in bodies.values() for row in _rows(of_group, cases)]
    figure = chooser.figure or default_figure(named)
    if by is not None:
        figure = checked_figure(run_dir, by, snapshot.rows)
    values = {row["job_id"]: value_of(row, figure) for row in named}
    groups = [_group(run_dir, name, bodies[name], cases, figure, values) for name in names]
    common = [body for body in groups[0].values if all(body in group.values for group in groups)]
    if not common:
        raise UsageError(
            f"{run_dir}: {option('jobs')}: they have no body in common:"
            f" {'; '.join(map(_bodies_text, groups))}"
        )
    with_value = [declared[job_id] for job_id, value in values.items() if value is not None]
    settings = settings_of_cases(with_value)
    why_this_figure = [chooser.figure_remark()] if by is None and chooser.figure else []
    shown = [_figures_of(group, common) for group in groups]
    others = [_against_first(groups[0], group, common, settings) for group in groups[1:]]
    return JobComparison(
        run_dir=run_dir,
        by=figure,
        bodies=common,
        groups=shown,
        others=others,
        remarks=[
            *why_this_figure,
            *_remarks_on_choice(run_dir, chooser, named),
            *other_tasks_remarks([figure], [one for other in others for one in other.settings]),
            *_remarks_on_missing(shown),
            *_remarks_on_protocols(groups, common),
            *_remarks_on_unlike_seeds(groups, common, with_value),
            *_remarks_on_few_seeds(shown),
            *_remarks_on_several(groups[0], others),
            *_remarks_on_bodies(groups, common),
        ],
    )


# -- jobs by name


def cases_of(rows: Sequence[SummaryRow]) -> Cases:
    cases: dict[str, list[SummaryRow]] = {}
    for row in rows:
        cases.setdefault(without_seed(row["job_id"], row["seed"]), []).append(row)
    return cases


def names_without_seeds(run_dir: Path, names: Sequence[str], cases: Cases) -> list[str]:
    """``names``, where an id with a seed, as other commands show it, means the job with all of its
    seeds.

    :raises UsageError: two of them mean the same.
    """
    case_of = {row["job_id"]: case for case, rows in cases.items() for row in rows}
    found = [name if name in cases else case_of.get(name, name) for name in names]
    for place, name in enumerate(found):
        if name not in found[:place]:
            continue
        pairs = zip(names, found, strict=True)
        given = list(dict.fromkeys(given for given, meant in pairs if meant == name))
        what = f"{name} is named twice"
        if given != [name]:
            verb = "means" if len(given) == 1 else "mean"
            what += f": {listed(given)} {verb} the job with all of its seeds"
        raise UsageError(f"{run_dir}: {option('jobs')}: {what}")
    return found


def bodies_named(run_dir: Path, name: str, cases: Cases) -> dict[str, str]:
    """Body → case, of those that ``name`` means.

    :raises UsageError: it means none.
    """
    if name in cases:
        return {"": name}
    found: dict[str, str] = {}
    if name.count(ANY_TEXT) == 1:
        before, after = map(re.escape, name.split(ANY_TEXT))
        pattern = re.compile(f"{before}(.*){after}", re.DOTALL)
        for case in cases:
            match = pattern.fullmatch(case)
            if match is not None:
                found[match[1]] = case
    if found:
        return found
    near = suggestion(name, list(cases))
    hint = f"did you mean {near}?" if near else f"jobs here: {listed(list(cases))}"
    what = "is no job, nor a pattern with one * that fits any"
    raise UsageError(f"{run_dir}: {option('jobs')}: {name} {what}; {hint}")


def _rows(bodies: Mapping[str, str], cases: Cases) -> list[SummaryRow]:
    """Of all bodies of a group. :param bodies: body → case."""
    return [row for case in bodies.values() for row in cases[case]]


def _bodies_text(group: Group) -> str:
    return f"{group.name} has {listed([body or group.name for body in group.values])}"


# -- groups


def _group(
    run_dir: Path,
    name: str,
    bodies: Mapping[str, str],
    cases: Cases,
    figure: str,
    of_jobs: Mapping[str, float | None],
) -> Group:
    """The jobs that ``name`` means.

    :param bodies: body → case.
    :param of_jobs: job_id → its value of ``figure``.
    :raises UsageError: none of the jobs has a value.
    """
    values: dict[str, list[float]] = {}
    protocols: dict[str, set[Protocol]] = {}
    missing = Counter[str]()
    for body, case in bodies.items():
        for row in cases[case]:
            value = of_jobs[row["job_id"]]
            if value is None:
                missing[body] += 1
                continue
            values.setdefault(body, []).append(value)
            protocols.setdefault(body, set()).add(protocol_of(row))
    if not values:
        without = compared_figure.without_value(_rows(bodies, cases), figure)
        raise UsageError(f"{run_dir}: {name}: {without}")
    return Group(name=name, cases=bodies, values=values, missing=missing, protocols=protocols)


def _figures_of(group: Group, bodies: Sequence[str]) -> GroupFigures:
    values = {body: group.values[body] for body in bodies}
    protocols = {protocol for body in bodies for protocol in group.protocols[body]}
    return GroupFigures(
        name=group.name,
        values=values,
        mean=estimate(one_value_each(list(values.values()))),
        interquartile_mean=interquartile_mean(one_value_each(list(values.values()))),
        missing=sum(group.missing[body] for body in bodies),
        protocols=longest_first(protocols),
    )


def _against_first(
    first: Group,
    other: Group,
    bodies: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
) -> AgainstFirst:
    figures = compare(
        [first.values[body] for body in bodies], [other.values[body] for body in bodies]
    )
    differences = differing_settings(
        {body: settings.get(first.cases[body], {}) for body in bodies},
        {body: settings.get(other.cases[body], {}) for body in bodies},
    )
    return AgainstFirst(name=other.name, figures=figures, settings=differences)


# -- what has to be known


def _remarks_on_choice(run_dir: Path, chooser: Chooser, rows: Iterable[SummaryRow]) -> list[str]:
    """:param rows: of all jobs that are compared."""
    if not chooser.has_chosen_among(row["job_id"] for row in rows):
        return []
    fresh = f"fresh seeds do not, such as a race of two jobs trains ({option('race', True)})"
    return [chooser.bias_sentence(run_dir, f"; {fresh}")]


def _remarks_on_missing(groups: Sequence[GroupFigures]) -> list[str]:
    return [
        f"{group.name}: {count(group.missing, 'job')} without a value left out."
        for group in groups
        if group.missing
    ]


def _remarks_on_protocols(groups: Sequence[Group], common: Sequence[str]) -> list[str]:
    sides = [{body: group.protocols[body] for body in common} for group in groups]
    return remark_on_protocols([group.name for group in groups], sides)


def _remarks_on_unlike_seeds(
    groups: Sequence[Group], common: Sequence[str], declared: Iterable[JobRow]
) -> list[str]:
    """That seeds of a job were not trained alike, as where its file was changed between them.

    :param declared: the jobs with a value.
    """
    by_case = jobs_of_cases(declared)
    remarks = []
    for case in dict.fromkeys(group.cases[body] for group in groups for body in common):
        if seeds := seeds_trained_otherwise(by_case[case]):
            which = f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(list(map(str, seeds)))}"
            remarks.append(
                f"{case}: {which} had other settings or another robot than its first seed, whose"
                " settings are shown."
            )
    return remarks


def _remarks_on_few_seeds(groups: Sequence[GroupFigures]) -> list[str]:
    bodies = len(groups[0].values)
    if bodies > 1:
        if bodies >= ENOUGH_SEEDS:
            return []
        return [
            f"{bodies} bodies tell only large differences from chance: each counts once, by the mean of"
            " its seeds."
        ]
    fewest = min(group.fewest_seeds for group in groups)
    race = f"let a race of two jobs train them ({option('race', True)})"
    if fewest == 1:
        return [
            "With one seed of a job there is no interval: another seed may reverse the order."
            f" Train {ENOUGH_SEEDS} or more: seeds = [0, 1, 2, 3, 4]; or {race}."
        ]
    if fewest < ENOUGH_SEEDS:
        return [
            f"{fewest} seeds tell only large differences from chance; train {ENOUGH_SEEDS} or more,"
            f" or {race}."
        ]
    return []


def _remarks_on_several(first: Group, others: Sequence[AgainstFirst]) -> list[str]:
    """That one of several differences is found by chance more often than a single one."""
    if len(others) == 1 or all(other.figures.p is None for other in others):
        return []
    number = len(others)
    by_chance = 1 - (1 - SIGNIFICANT) ** number
    return [
        f"Each of {number} jobs is compared with {first.name} by itself. If none of them differed, at"
        f" least one would still have p ≤ {SIGNIFICANT:g} with a probability of up to {by_chance:.0%};"
        f" p ≤ {SIGNIFICANT / number:.2g} is hardly chance all the same."
    ]


def _remarks_on_bodies(groups: Sequence[Group], common: Sequence[str]) -> list[str]:
    left_out = sorted({body for group in groups for body in group.values if body not in common})
    return [f"Not all have {listed(left_out)}: left out."] if left_out else []
