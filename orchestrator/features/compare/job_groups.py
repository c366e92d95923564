"""Jobs of one run directory compared with each other: ``compare RUN --jobs A,B --by FIGURE``.

A *group* is what a name means: a job over its seeds, or, of a pattern with one ``*``, several bodies
over theirs. Bodies of two groups belong together where ``*`` stands for the same text, so that
``ppo-*,sac-*`` compares two algorithms over the same bodies. Read-only.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.analysis import two_groups
from orchestrator.analysis.job_values import figures_of, job_values
from orchestrator.analysis.two_groups import Figure, TwoGroups
from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.measure_expressions import ExpressionError, parse_expression
from orchestrator.core.text import count, listed
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.features.compare import chosen_jobs, comparison
from orchestrator.features.compare.chosen_jobs import Chooser
from orchestrator.features.compare.comparison import Difference
from orchestrator.jobfile.job_names import without_seed
from orchestrator.keys.problems import suggestion
from orchestrator.ledger import SummaryRow
from orchestrator.ledger.lineage import env_steps_before

EVALUATION = "eval_mean"
TRAINING = "ep_rew_mean"
OPTIONS_OF_TASKS = ("task_options.", "env_kwargs.")
"""What keys of a job begin with that may change its reward."""
PAY_NOTHING = ("observe", "history", "asymmetric")
"""The options of tasks that only say what the policy and its critic are shown."""
ANY_TEXT = "*"
ENOUGH_SEEDS = 5
"""With so many seeds in both groups, p can be far below 0.05."""

Cases: TypeAlias = Mapping[str, Sequence[SummaryRow]]
"""The name of a job without its seed → its rows, one for each seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """What a value was measured after. Values of other protocols are not comparable."""

    env_steps: int
    """Of the training itself."""
    earlier_env_steps: int | None
    """Of the jobs from whose policies it started, one after another; 0: from nothing; None: it
    started from a policy of which that is not known."""

    def __str__(self) -> str:
        text = f"{self.env_steps:,} env_steps"
        if self.earlier_env_steps is None:
            return f"{text} after an unknown number of the policy that it started from"
        earlier = f"{self.earlier_env_steps:,} of the policy that it started from"
        return f"{text} after {earlier}" if self.earlier_env_steps else f"{text} from nothing"

    def order(self) -> tuple[int, int]:
        """Less than that of a longer training; an unknown number counts as none."""
        return self.env_steps, self.earlier_env_steps or 0


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
    protocols: Mapping[str, Collection[Protocol]]
    """Body → how its values were reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """One group by itself, over the bodies that all groups have."""

    name: str
    values: Mapping[str, Sequence[float]]
    mean: Figure
    interquartile_mean: Figure
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


def compare_jobs(run_dir: Path, names: Sequence[str], by: str | None) -> JobComparison:
    """As :func:`orchestrator.compare` without a race; messages are spelled for whoever has asked."""
    if len(names) < 2:
        raise UsageError(
            f"{run_dir}: {option('jobs')}: expected two or more names of jobs, found {len(names)}"
        )
    if repeated := [name for place, name in enumerate(names) if name in names[:place]]:
        raise UsageError(f"{run_dir}: {option('jobs')}: {repeated[0]} is named twice")
    snapshot = run_snapshot.status(run_dir)
    declared = {row.job_id: row for row in comparison.declared_jobs(snapshot.paths)}
    cases = cases_of(snapshot.rows)
    bodies = {name: bodies_named(run_dir, name, cases) for name in names}
    chooser = chosen_jobs.chooser(snapshot.paths, with_objectives=by is None)
    named = [row for of_group in bodies.values() for row in _rows(of_group, cases)]
    figure = chooser.figure or _return_of(named)
    if by is not None:
        figure = checked_figure(run_dir, by, snapshot.rows)
    groups = [_group(run_dir, name, bodies[name], cases, figure) for name in names]
    common = [body for body in groups[0].values if all(body in group.values for group in groups)]
    if not common:
        raise UsageError(
            f"{run_dir}: {option('jobs')}: they have no body in common:"
            f" {'; '.join(map(_bodies_text, groups))}"
        )
    settings = comparison.settings_of_cases(declared.values())
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
            *other_tasks_remarks(figure, [one for other in others for one in other.settings]),
            *_remarks(shown),
            *_remarks_on_bodies(groups, common),
        ],
    )


# -- jobs by name


def cases_of(rows: Sequence[SummaryRow]) -> Cases:
    cases: dict[str, list[SummaryRow]] = {}
    for row in rows:
        cases.setdefault(without_seed(row["job_id"], row["seed"]), []).append(row)
    return cases


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


# -- the figure


def _return_of(rows: Sequence[SummaryRow]) -> str:
    """The return of the evaluation, or that of training where not all were evaluated."""
    succeeded = [row for row in rows if row["state"] == "SUCCEEDED"]
    is_all_evaluated = all(row["eval_mean"] is not None for row in succeeded)
    return EVALUATION if is_all_evaluated else TRAINING


def checked_figure(run_dir: Path, by: str, rows: Sequence[SummaryRow]) -> str:
    """:raises UsageError: ``by`` is neither a figure of these jobs nor an expression of such."""
    measures = {name for row in rows for name in row["measures"] or {}}
    reported = {EVALUATION, TRAINING, *(name for row in rows for name in figures_of(row))}
    if by in reported:
        return by
    try:
        names = parse_expression(by).names
    except ExpressionError as error:
        raise UsageError(f"{run_dir}: {option('by', by)}: {error}") from error
    known = sorted({*measures, EVALUATION, TRAINING})
    for name in names:
        if name not in reported:
            near = suggestion(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"{run_dir}: {option('by')}: no job has reported {name}; {hint}")
    return by


def names_in(figure: str) -> Sequence[str]:
    """The measures and columns that it is computed from."""
    try:
        return parse_expression(figure).names
    except ExpressionError:  # a measure whose name is no expression
        return [figure]


def other_tasks_remarks(figure: str, settings: Iterable[Difference]) -> list[str]:
    """That a return is compared of tasks that may not pay alike; none for another figure, and for
    tasks with equal options.
    """
    returns = [name for name in names_in(figure) if name in (EVALUATION, TRAINING)]
    options = dict.fromkeys(one.what for one in settings if _may_pay(one.what))
    if not returns or not options:
        return []
    return [
        f"{returns[0]} is a return, and what earns it may differ with {listed(list(options))}:"
        f" {option('by')} with a measure of the task compares what both achieve."
    ]


def _may_pay(setting: str) -> bool:
    is_option = setting.startswith(OPTIONS_OF_TASKS)
    return is_option and not any(setting == f"task_options.{name}" for name in PAY_NOTHING)


def value_of(row: SummaryRow, figure: str) -> float | None:
    """None where there is none, or no finite one."""
    if row["state"] != "SUCCEEDED":
        return None
    (value,) = job_values(figure, [figures_of(row)]).of_jobs
    return value if value is not None and math.isfinite(value) else None


def _why_without_value(rows: Sequence[SummaryRow], figure: str) -> str:
    """:param rows: none of them has a value."""
    succeeded = [figures_of(row) for row in rows if row["state"] == "SUCCEEDED"]
    return job_values(figure, succeeded).why or "jobs that have succeeded have one"


# -- groups


def _group(
    run_dir: Path,
    name: str,
    bodies: Mapping[str, str],
    cases: Cases,
    figure: str,
) -> Group:
    """The jobs that ``name`` means.

    :param bodies: body → case.
    :raises UsageError: none of the jobs has a value.
    """
    values: dict[str, list[float]] = {}
    protocols: dict[str, set[Protocol]] = {}
    missing = Counter[str]()
    for body, case in bodies.items():
        for row in cases[case]:
            value = value_of(row, figure)
            if value is None:
                missing[body] += 1
                continue
            values.setdefault(body, []).append(value)
            protocols.setdefault(body, set()).add(_protocol(row))
    if not values:
        rows = _rows(bodies, cases)
        states = sorted({row["state"] for row in rows})
        raise UsageError(
            f"{run_dir}: {name}: none of its {count(missing.total(), 'job')} ({', '.join(states)}) has a"
            f" value of {figure}; {_why_without_value(rows, figure)}"
        )
    return Group(name=name, cases=bodies, values=values, missing=missing, protocols=protocols)


def _protocol(row: SummaryRow) -> Protocol:
    env_steps = row["env_steps"]
    earlier = env_steps_before(env_steps, row["lineage_env_steps"])
    return Protocol(env_steps=env_steps, earlier_env_steps=earlier)


def _figures_of(group: Group, bodies: Sequence[str]) -> GroupFigures:
    values = {body: group.values[body] for body in bodies}
    protocols = {protocol for body in bodies for protocol in group.protocols[body]}
    return GroupFigures(
        name=group.name,
        values=values,
        mean=two_groups.mean(list(values.values())),
        interquartile_mean=two_groups.interquartile_mean(list(values.values())),
        missing=sum(group.missing[body] for body in bodies),
        protocols=sorted(protocols, key=Protocol.order, reverse=True),
    )


def _against_first(
    first: Group,
    other: Group,
    bodies: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
) -> AgainstFirst:
    figures = two_groups.compare(
        [first.values[body] for body in bodies], [other.values[body] for body in bodies]
    )
    differences = comparison.differing_settings(
        {body: settings.get(first.cases[body], {}) for body in bodies},
        {body: settings.get(other.cases[body], {}) for body in bodies},
    )
    return AgainstFirst(name=other.name, figures=figures, settings=differences)


# -- what has to be known


def _remarks_on_choice(run_dir: Path, chooser: Chooser, rows: Iterable[SummaryRow]) -> list[str]:
    """:param rows: of all jobs that are compared."""
    if not chooser.has_chosen_among(row["job_id"] for row in rows):
        return []
    flattery = chooser.flattery(run_dir)
    fresh = f"fresh seeds do not, such as a race of two jobs trains ({option('race', True)})"
    return [f"{flattery[0].upper()}{flattery[1:]}; {fresh}."]


def _remarks(groups: Sequence[GroupFigures]) -> list[str]:
    remarks = [
        f"{group.name}: {count(group.missing, 'job')} without a value left out."
        for group in groups
        if group.missing
    ]
    protocols = {protocol for group in groups for protocol in group.protocols}
    if len(protocols) > 1 or any(one.earlier_env_steps is None for one in protocols):
        how = "were not" if len(protocols) > 1 else "may not have been"
        each = "; ".join(
            f"{group.name}: {', or '.join(map(str, group.protocols))}" for group in groups
        )
        remarks.append(
            f"The values {how} reached alike, so a difference may be one of training: {each}."
        )
    fewest = min(group.fewest_seeds for group in groups)
    if fewest == 1:
        remarks.append(
            "With one seed of a job there is no interval: another seed may reverse the order."
            f" Train {ENOUGH_SEEDS} or more: seeds = [0, 1, 2, 3, 4]; or let a race of two jobs train"
            f" them ({option('race', True)})."
        )
    elif fewest < ENOUGH_SEEDS:
        remarks.append(
            f"{fewest} seeds tell only large differences from chance; train {ENOUGH_SEEDS} or more,"
            f" or let a race of two jobs train them ({option('race', True)})."
        )
    return remarks


def _remarks_on_bodies(groups: Sequence[Group], common: Sequence[str]) -> list[str]:
    left_out = sorted({body for group in groups for body in group.values if body not in common})
    return [f"Not all have {listed(left_out)}: left out."] if left_out else []
