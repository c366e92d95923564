"""Comparison of run directories (other machine, version or settings): ratios with intervals.

Two benchmarks are compared by baseline and level, two files of ``benchmarks.machine`` by case, two
experiments by job, over its seeds; of more than two, each is compared with the first. Read-only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from orchestrator.analysis import job_metrics, run_reader, samples
from orchestrator.analysis.statistics import Estimate, estimate, location, ratio
from orchestrator.core.errors import UsageError
from orchestrator.core.front_end import option
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.resuming.declared_changes import decisive_keys
from orchestrator.features.compare import chosen_jobs
from orchestrator.features.compare.chosen_jobs import Chooser
from orchestrator.features.compare.compared_figure import (
    checked_figure,
    value_of,
    without_value,
)
from orchestrator.features.compare.protocols import (
    Protocol,
    Protocols,
    protocol_of,
    remark_on_protocols,
)
from orchestrator.jobfile.hyperparameters import DEFAULTS
from orchestrator.jobfile.job_names import without_seed
from orchestrator.ledger import JobRow, SummaryRow

Kind = Literal["benchmark", "experiment"]

DIFFERENT_WORK = "the jobs that were measured"
RETURNS = ("return", "evaluation")
LONGEST_VALUE = 40
"""Characters of a value in the list of differences."""
CASES_SHOWN = 5
HASH_SHOWN = 12
OF_ONE_JOB = ("job_id", "seed", "xml", "learner", "extended_from")
"""Keys that are no settings; the learner that a job really had is among the facts."""
OF_NO_POINT = ("robot_hash", "seeds")
"""Settings that may differ between trials of the same point."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one case in both run directories."""

    what: str
    """The case: ``default × 2``, or a job's name."""
    figure: str
    """``throughput`` or ``efficiency``; of jobs ``env_steps/s``, ``return`` (in training) or
    ``evaluation``, or the figure that was named."""
    a: Estimate
    b: Estimate
    ratio: Estimate | None
    """B divided by A; None where a value is not positive."""
    bound: str = ""
    """The sides that are upper bounds, from measurements that were cut off: ``a``, ``b`` or
    ``ab``."""
    less_is_better: bool | None = False
    """None: that is not known."""


@dataclass(frozen=True, slots=True)
class Difference:
    what: str
    a: str
    """The value in A."""
    b: str


class DifferenceOfAll(NamedTuple):
    """What differs between several run directories."""

    what: str
    values: Sequence[str]
    """In each of them, the first one first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    kind: Kind
    a: Path
    b: Path
    pairs: Sequence[Pair]
    differences: Sequence[Difference]
    """Other than settings."""
    settings: Sequence[Difference] = ()
    """What jobs that both have are trained with; the jobs are named unless all of them differ
    alike."""
    only_a: Sequence[str]
    only_b: Sequence[str]
    remarks: Sequence[str] = ()
    """What has to be known to trust the comparison."""

    def facts(self) -> dict[str, Any]:
        """The content of ``--json`` for two run directories."""
        return {
            **asdict(self),
            "a": str(self.a),
            "b": str(self.b),
        }


def all_remarks(comparisons: Iterable[Comparison]) -> list[str]:
    """Those of all comparisons, each once."""
    return list(dict.fromkeys(remark for one in comparisons for remark in one.remarks))


Line: TypeAlias = Sequence[Pair | None]
"""One figure of one case: its pair in each comparison with the first run directory, None where one
does not have it."""
LETTERS = "ABCDEFGH"
"""Names of the run directories in tables; as many can be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    kind: Kind
    cases: Mapping[str, Mapping[str, Sequence[float]]]
    """Case → figure → one value per repeat or seed."""
    bounds: Collection[str] = ()
    """Cases whose values are upper bounds."""
    less_is_better: Mapping[str, bool | None] = field(default_factory=dict)
    """Figure → whether less of it is better; None: that is not known. More is, of all others."""
    facts: Mapping[str, Any]
    """What may explain a difference: learner, machine, versions."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Case → what its jobs are trained with, by dotted key of the job file."""
    protocols: Protocols = field(default_factory=dict)
    """Case → how its values were reached."""
    chooser: Chooser = field(default_factory=Chooser)
    """What has chosen jobs by their values."""
    chosen: Collection[str] = ()
    """Cases by whose values :attr:`chooser` chooses."""


def compare_with_first(runs: Sequence[Path], by: str | None = None) -> list[Comparison]:
    """Each run directory after the first, compared with the first in the cases that both have.

    :param by: the figure that jobs are compared by: a measure, a column or an expression of them;
        None: speed and returns.
    :raises UsageError: for directories without results, of different kinds, or with nothing in
        common; or there is no such figure.
    """
    first, *others = (_side(run, by) for run in runs)
    return [
        _comparison_of(runs[0], first, run, other)
        for run, other in zip(runs[1:], others, strict=True)
    ]


def _side(run: Path, by: str | None) -> _Side:
    if not run.is_file() and not samples.is_benchmark(run):
        return _experiment(run, by)
    if by is not None:
        raise UsageError(
            f"{run} is a benchmark: {option('by', by)} is for experiments, whose jobs have measures"
        )
    return _machine(run) if run.is_file() else _benchmark(run)


def merged_differences(rows: Sequence[Sequence[Difference]]) -> list[DifferenceOfAll]:
    """Differences of several run directories from the same first one.

    A run directory without a difference has the value of the first. It is ``–`` where it differs in
    the same setting, but for other jobs.

    :param rows: for each of the others its settings or differences.
    """
    first: dict[str, str] = {}
    for differences in rows:
        for one in differences:
            first.setdefault(one.what, one.a)
    return [
        DifferenceOfAll(what, [value, *(_merged_value(what, value, others) for others in rows)])
        for what, value in first.items()
    ]


def _merged_value(what: str, first: str, differences: Sequence[Difference]) -> str:
    """The value in a run directory with these ``differences`` from one that has ``first``."""
    for one in differences:
        if one.what == what:  # the jobs in common, and so the first value, may be others
            return one.b if one.a == first else f"{one.b} (from {one.a})"
    is_of_other_jobs = any(without_cases(one.what) == without_cases(what) for one in differences)
    return "–" if is_of_other_jobs else first


def without_cases(what: str) -> str:
    """``"ppo.n_steps (hopper)"`` → ``"ppo.n_steps"``."""
    return what.partition(" (")[0]


def facts(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The content of ``--json``; of more than two run directories, that of every comparison with
    the first.
    """
    if len(comparisons) == 1:
        return comparisons[0].facts()
    return {"kind": comparisons[0].kind, "comparisons": [one.facts() for one in comparisons]}


def lines(comparisons: Sequence[Comparison]) -> list[Line]:
    """All figures, in the order of the first run directory's."""
    by_place = [{(pair.what, pair.figure): pair for pair in one.pairs} for one in comparisons]
    places = dict.fromkeys(place for pairs in by_place for place in pairs)
    return [[pairs.get(place) for pairs in by_place] for place in places]


def any_pair(line: Line) -> Pair:
    """The figure's first pair: what it says about the figure itself and the first run directory,
    all of them say.
    """
    return next(pair for pair in line if pair is not None)


def _comparison_of(run_a: Path, a: _Side, run_b: Path, b: _Side) -> Comparison:
    if a.kind != b.kind:
        article = {"benchmark": "a benchmark", "experiment": "an experiment"}
        kinds = f"{run_a} is {article[a.kind]} and {run_b} is {article[b.kind]}"
        raise UsageError(f"{kinds}: give two benchmarks or two experiments")
    common = [what for what in a.cases if what in b.cases]
    unlike = _other_trials(common, a, b)
    compared = [what for what in common if what not in unlike]
    pairs = [pair for what in compared for pair in _pairs(what, a, b)]
    if not pairs and unlike:
        raise UsageError(
            f"{run_a} and {run_b} have nothing in common: {_other_trials_text(unlike, a, b)}; `best`"
            " shows what each has found"
        )
    if not pairs:
        cases = f"the first has {names_of(list(a.cases))}, the second has {names_of(list(b.cases))}"
        names = "Baselines and levels" if a.kind == "benchmark" else "Names of finished jobs"
        advice = (
            "; otherwise write a `report` of each, or read their summary.csv"
            if a.kind == "experiment"
            else ""
        )
        raise UsageError(
            f"{run_a} and {run_b} have nothing in common: {cases}. {names} must agree{advice}"
        )
    return Comparison(
        kind=a.kind,
        a=run_a,
        b=run_b,
        pairs=pairs,
        differences=[
            Difference(name.replace("_", " "), _short(a.facts.get(name)), _short(b.facts.get(name)))
            for name in dict.fromkeys([*a.facts, *b.facts])
            if a.facts.get(name) != b.facts.get(name)
        ],
        settings=differing_settings(_only(compared, a.settings), _only(compared, b.settings)),
        only_a=[what for what in a.cases if what not in b.cases],
        only_b=[what for what in b.cases if what not in a.cases],
        remarks=[
            *_remarks_on_other_trials(unlike, a, b),
            *remark_on_protocols(
                [str(run_a), str(run_b)],
                [_only(compared, a.protocols), _only(compared, b.protocols)],
            ),
            *_remarks_on_choice(compared, {run_a: a, run_b: b}),
        ],
    )


def _only(cases: Iterable[str], by_case: Mapping[str, T]) -> dict[str, T]:
    return {case: by_case[case] for case in cases if case in by_case}


# -- jobs of searches


def _other_trials(common: Sequence[str], a: _Side, b: _Side) -> list[str]:
    """Those cases of ``common`` of which only the number of the trial agrees: they are trained
    otherwise, and not as all of them are, such as for longer.
    """
    if not (a.chooser.makes_jobs or b.chooser.makes_jobs):
        return []
    unlike: set[str] = set()
    differences = _cases_by_difference(_only(common, a.settings), _only(common, b.settings))
    for difference, cases in differences.items():
        if difference.what not in OF_NO_POINT and len(cases) < len(common):
            unlike |= set(cases)
    return [case for case in common if case in unlike]


def _other_trials_text(cases: Sequence[str], a: _Side, b: _Side) -> str:
    noun = a.chooser.noun if a.chooser.makes_jobs else b.chooser.noun
    each = "is another training" if len(cases) == 1 else "are other trainings"
    return (
        f"a {noun} numbers its jobs, so that {names_of(cases)} {each} in the one than in the other"
    )


def _remarks_on_other_trials(cases: Sequence[str], a: _Side, b: _Side) -> list[str]:
    return [f"Left out: {_other_trials_text(cases, a, b)}."] if cases else []


def _remarks_on_choice(compared: Sequence[str], sides: Mapping[Path, _Side]) -> list[str]:
    remarks = []
    for run, side in sides.items():
        if any(case in side.chosen for case in compared):
            flattery = side.chooser.flattery(run)
            remarks.append(f"{flattery[0].upper()}{flattery[1:]}.")
    return remarks


# -- one side


def _benchmark(run_dir: Path) -> _Side:
    with samples.damage_explained(run_dir):
        return _benchmark_side(samples.read(run_dir))


def _benchmark_side(bench: samples.Benchmark) -> _Side:
    cases: dict[str, dict[str, Sequence[float]]] = {}
    bounds = []
    for baseline, levels in bench.baselines.items():
        base = levels[min(levels)]
        # In pairs of the same repeat where both exist, as in the benchmark's own report.
        alone = {sample.repeat: sample.throughput for sample in base.samples}
        for level, measured in levels.items():
            name = f"{baseline} × {level}"
            cases[name] = {"throughput": measured.throughputs}
            bounds += [name] if measured.at_most else []
            if measured is not base and not base.at_most:
                ideal = min(measured.processes, bench.capacity) / base.processes
                counted = [sample for sample in measured.samples if sample.repeat in alone]
                cases[name]["efficiency"] = [
                    one.throughput / alone[one.repeat] / ideal for one in counted
                ]
    plan = bench.plan
    work = {
        DIFFERENT_WORK: ", ".join(map(str, plan.get("jobs") or ())),
        **_with_prefix("work", plan.get("work")),
    }
    learner = ", ".join(bench.learners) or plan.get("learner")
    facts = {
        **work,
        "learner": learner,
        **_with_prefix("", plan.get("machine")),
        **_with_prefix("", plan.get("versions")),
    }
    return _Side(kind="benchmark", cases=cases, bounds=bounds, facts=facts)


def _machine(path: Path) -> _Side:
    """All that ``python -m benchmarks.machine`` has measured on one machine."""
    content = run_reader.read_json_object(path) or {}
    try:
        sections = content["sections"].values()
        cases = {
            str(case): {str(figure): _numbers(values) for figure, values in figures.items()}
            for section in sections
            for case, figures in section["cases"].items()
        }
        bounds = [str(case) for section in sections for case in section["bounds"]]
        less_is_better = dict.fromkeys(map(str, content["less_is_better"]), True)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        expected = "expected a machine.json of `python -m benchmarks.machine`, or a run directory"
        raise UsageError(f"{path}: cannot be compared; {expected}") from error
    facts = {
        **_with_prefix("", content.get("machine")),
        **_with_prefix("", content.get("versions")),
    }
    return _Side(
        kind="benchmark", cases=cases, bounds=bounds, less_is_better=less_is_better, facts=facts
    )


def _numbers(values: Sequence[Any]) -> list[float]:
    """``values`` without what is no number."""
    return [number for number in map(run_reader.finite, values) if number is not None]


def _experiment(run_dir: Path, by: str | None) -> _Side:
    """Jobs by name and point of their matrix; their seeds are the values."""
    groups: dict[str, list[SummaryRow]] = {}
    snapshot = run_snapshot.status(run_dir)
    for row in snapshot.rows:
        groups.setdefault(without_seed(row["job_id"], row["seed"]), []).append(row)
    if by is None:
        metrics = job_metrics.gather(run_dir).jobs
        speeds = {job.job_id: job.env_steps / job.wall_s for job in metrics if job.env_steps}
        cases = {name: _speed_and_returns(rows, speeds) for name, rows in groups.items()}
    else:
        figure = checked_figure(run_dir, by, snapshot.rows)
        cases = {name: _values_of(figure, rows) for name, rows in groups.items()}
        if snapshot.rows and not any(cases.values()):
            raise UsageError(f"{run_dir}: {without_value(snapshot.rows, figure)}")
    session = run_reader.last_session(snapshot.paths.provenance)
    facts = {
        "learner": ", ".join(
            sorted({row["learner"] for row in snapshot.rows if row["learner"] is not None})
        ),
        **{
            name: session.get(name)
            for name in ("host", "platform", "physical_cores", "cpu_quota", "jobs_at_once")
        },
        **_with_prefix("", session.get("versions")),
        **_with_prefix("git", session.get("git")),
    }
    finished = {name: values for name, values in cases.items() if values}
    declared = settings_of_cases(declared_jobs(snapshot.paths) if finished else ())
    chooser = chosen_jobs.chooser(snapshot.paths, with_objectives=False)
    ids = {name: [row["job_id"] for row in groups[name]] for name in finished}
    return _Side(
        kind="experiment",
        cases=finished,
        less_is_better={} if by is None else {by: None},
        facts=facts,
        settings=_only(finished, declared),
        protocols={name: _protocols(groups[name]) for name in finished},
        chooser=chooser,
        chosen=[name for name in finished if chooser.has_chosen_among(ids[name])],
    )


def _protocols(rows: Sequence[SummaryRow]) -> set[Protocol]:
    return {protocol_of(row) for row in rows if row["state"] == "SUCCEEDED"}


def declared_jobs(paths: RunPaths) -> list[JobRow]:
    """All jobs of a run directory, as they are declared."""
    with run_directory.reading_ledger(paths) as ledger:
        return list(ledger.jobs())


def settings_of_cases(rows: Iterable[JobRow]) -> dict[str, dict[str, Any]]:
    """Case (a job's name without its seed) → what its jobs are trained with, by dotted key."""
    by_case: dict[str, list[JobRow]] = {}
    for row in rows:
        by_case.setdefault(without_seed(row.job_id, row.job.spec.seed), []).append(row)
    return {case: _declared_settings(jobs) for case, jobs in by_case.items()}


def differing_settings(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]
) -> list[Difference]:
    """Every setting that differs, once for all common cases in which both values are the same.

    :param a: case → its settings. :param b: likewise.
    """
    common = a.keys() & b.keys()
    return [
        one if len(cases) == len(common) else _of_cases(one, cases)
        for one, cases in _cases_by_difference(a, b).items()
    ]


def _cases_by_difference(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]
) -> dict[Difference, list[str]]:
    cases_with: dict[Difference, list[str]] = {}
    for case in (case for case in a if case in b):
        old = a[case]
        new = b[case]
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                difference = Difference(key, _short(old.get(key)), _short(new.get(key)))
                cases_with.setdefault(difference, []).append(case)
    return cases_with


def _of_cases(difference: Difference, cases: Sequence[str]) -> Difference:
    return replace(difference, what=f"{difference.what} ({listed(cases, CASES_SHOWN)})")


def _declared_settings(rows: Sequence[JobRow]) -> dict[str, Any]:
    """What the jobs of one case, which differ in their seed, are trained with."""
    job = rows[0].job
    spec = rows[0].job.spec
    defaults = {f"{spec.algo}.{key}": value for key, value in DEFAULTS[spec.algo].items()}
    keys = {key: value for key, value in decisive_keys(job).items() if key not in OF_ONE_JOB}
    hashes = sorted({row.robot_hash[:HASH_SHOWN] for row in rows if row.robot_hash})
    return {
        "robot_hash": ", ".join(hashes),
        "seeds": sorted(row.job.spec.seed for row in rows),
        **defaults,
        **keys,
        "eval_episodes": spec.eval_episodes,
        "resources.cores": job.resources.cores,
        "resources.nice": job.resources.nice,
    }


def _values_of(figure: str, rows: Sequence[SummaryRow]) -> dict[str, Sequence[float]]:
    """``figure`` → its values over the seeds that have one; empty where none has."""
    known = [value for row in rows if (value := value_of(row, figure)) is not None]
    return {figure: known} if known else {}


def _speed_and_returns(
    rows: Sequence[SummaryRow], speeds: Mapping[str, float]
) -> dict[str, Sequence[float]]:
    """Figure → its values over the seeds that have succeeded; without figures that have none.

    :param speeds: job_id → env_steps/s of its iterations, without start-up, evaluation and videos.
    """
    done = [row for row in rows if row["state"] == "SUCCEEDED"]
    figures = {
        "env_steps/s": [speeds.get(row["job_id"]) for row in done],
        "return": [row["ep_rew_mean"] for row in done],
        "evaluation": [row["eval_mean"] for row in done],
    }
    known = {
        name: [value for value in values if value is not None] for name, values in figures.items()
    }
    return {name: values for name, values in known.items() if values}


def _pairs(what: str, a: _Side, b: _Side) -> Iterator[Pair]:
    bound = f"{'a' if what in a.bounds else ''}{'b' if what in b.bounds else ''}"
    for figure, a_values in a.cases[what].items():
        b_values = b.cases[what].get(figure)
        if not a_values or not b_values:
            continue
        yield Pair(
            what=what,
            figure=figure,
            a=_estimate(figure, a_values, a, is_bound="a" in bound),
            b=_estimate(figure, b_values, a, is_bound="b" in bound),
            ratio=_quotient(a_values, b_values, bound),
            bound=bound,
            less_is_better=a.less_is_better.get(figure, False),
        )


def _quotient(a: Sequence[float], b: Sequence[float], bound: str) -> Estimate | None:
    """B divided by A; None where a value is not positive, or both are upper bounds."""
    if min(*a, *b) <= 0 or bound == "ab":
        return None
    quotient = ratio(b, a)
    if bound == "a":  # A is at most so much, so the ratio is at least so much
        return replace(quotient, high=None)
    return replace(quotient, low=None) if bound == "b" else quotient


def _estimate(figure: str, values: Sequence[float], first: _Side, *, is_bound: bool) -> Estimate:
    """As in the reports: an upper bound has no ``low``; returns and other figures of episodes have no
    natural zero.
    """
    is_of_episodes = figure in RETURNS or first.less_is_better.get(figure, False) is None
    result = location(values) if is_of_episodes else estimate(values)
    return replace(result, low=None) if is_bound else result


def _with_prefix(prefix: str, values: Any) -> dict[str, Any]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {f"{prefix} {name}".strip(): value for name, value in items}


def _short(value: Any) -> str:
    text = "–" if value is None or value == "" else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def names_of(cases: Sequence[str]) -> str:
    """The first five names, for a sentence."""
    return listed(cases, 5) if cases else "nothing that is finished"
