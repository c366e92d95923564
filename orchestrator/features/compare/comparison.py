"""Comparison of run directories (other machine, version or settings): ratios with intervals.

Two benchmarks are compared by baseline and level, two files of ``benchmarks.machine`` by case, two
experiments by job, over its seeds; of more than two, each is compared with the first. Read-only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from orchestrator.analysis import job_metrics, run_reader, samples
from orchestrator.analysis.statistics import Estimate, estimate, location, ratio
from orchestrator.core.errors import UsageError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import listed
from orchestrator.experiment.directory import run_directory
from orchestrator.experiment.from_outside import run_snapshot
from orchestrator.experiment.resuming.declared_changes import decisive_keys
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one case in both run directories."""

    what: str
    """The case: ``default × 2``, or a job's name."""
    figure: str
    """``throughput`` or ``efficiency``; of jobs ``env_steps/s``, ``return`` (in training) or
    ``evaluation``."""
    a: Estimate
    b: Estimate
    ratio: Estimate | None
    """B divided by A; None where a value is not positive."""
    bound: str = ""
    """The sides that are upper bounds, from measurements that were cut off: ``a``, ``b`` or
    ``ab``."""
    less_is_better: bool = False


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

    def facts(self) -> dict[str, Any]:
        """The content of ``--json`` for two run directories."""
        return {
            **asdict(self),
            "a": str(self.a),
            "b": str(self.b),
        }


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
    less_is_better: Collection[str] = ()
    """Figures of which less is better."""
    facts: Mapping[str, Any]
    """What may explain a difference: learner, machine, versions."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Case → what its jobs are trained with, by dotted key of the job file."""


def compare_with_first(runs: Sequence[Path]) -> list[Comparison]:
    """Each run directory after the first, compared with the first in the cases that both have.

    :raises UsageError: for directories without results, of different kinds, or with nothing in
        common.
    """
    first, *others = map(_side, runs)
    return [
        _comparison_of(runs[0], first, run, other)
        for run, other in zip(runs[1:], others, strict=True)
    ]


def _side(run: Path) -> _Side:
    if run.is_file():
        return _machine(run)
    return _benchmark(run) if samples.is_benchmark(run) else _experiment(run)


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
    is_of_other_jobs = any(_setting(one.what) == _setting(what) for one in differences)
    return "–" if is_of_other_jobs else first


def _setting(what: str) -> str:
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
    pairs = [pair for what in a.cases if what in b.cases for pair in _pairs(what, a, b)]
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
        settings=differing_settings(a.settings, b.settings),
        only_a=[what for what in a.cases if what not in b.cases],
        only_b=[what for what in b.cases if what not in a.cases],
    )


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
        less_is_better = list(map(str, content["less_is_better"]))
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


def _experiment(run_dir: Path) -> _Side:
    """Jobs by name and point of their matrix; their seeds are the values."""
    groups: dict[str, list[SummaryRow]] = {}
    snapshot = run_snapshot.status(run_dir)
    for row in snapshot.rows:
        groups.setdefault(without_seed(row["job_id"], row["seed"]), []).append(row)
    metrics = job_metrics.gather(run_dir).jobs
    speeds = {job.job_id: job.env_steps / job.wall_s for job in metrics if job.env_steps}
    cases = {name: _values(rows, speeds) for name, rows in groups.items()}
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
    settings = {case: values for case, values in declared.items() if case in finished}
    return _Side(kind="experiment", cases=finished, facts=facts, settings=settings)


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
    common = [case for case in a if case in b]
    cases_with: dict[Difference, list[str]] = {}
    for case in common:
        old = a[case]
        new = b[case]
        for key in {**old, **new}:
            if old.get(key) != new.get(key):
                difference = Difference(key, _short(old.get(key)), _short(new.get(key)))
                cases_with.setdefault(difference, []).append(case)
    return [
        one if len(cases) == len(common) else _of_cases(one, cases)
        for one, cases in cases_with.items()
    ]


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


def _values(rows: Sequence[SummaryRow], speeds: Mapping[str, float]) -> dict[str, Sequence[float]]:
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
            a=_estimate(figure, a_values, "a" in bound),
            b=_estimate(figure, b_values, "b" in bound),
            ratio=_quotient(a_values, b_values, bound),
            bound=bound,
            less_is_better=figure in a.less_is_better,
        )


def _quotient(a: Sequence[float], b: Sequence[float], bound: str) -> Estimate | None:
    """B divided by A; None where a value is not positive, or both are upper bounds."""
    if min(*a, *b) <= 0 or bound == "ab":
        return None
    quotient = ratio(b, a)
    if bound == "a":  # A is at most so much, so the ratio is at least so much
        return replace(quotient, high=None)
    return replace(quotient, low=None) if bound == "b" else quotient


def _estimate(figure: str, values: Sequence[float], is_bound: bool) -> Estimate:
    """As in the reports: an upper bound has no ``low``, and returns have no natural zero."""
    result = location(values) if figure in RETURNS else estimate(values)
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
