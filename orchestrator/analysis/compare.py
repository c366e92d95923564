"""Comparison of two run directories (other machine, version or settings): ratios with intervals.

Two benchmarks are compared by baseline and level, two experiments by job, over its seeds. Read-only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from orchestrator.analysis import job_metrics, run_reader, samples
from orchestrator.analysis.statistics import Estimate, estimate, location, ratio
from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed
from orchestrator.experiment import control
from orchestrator.ledger import SummaryRow

Kind = Literal["benchmark", "experiment"]

DIFFERENT_WORK = "the jobs that were measured"
RETURNS = ("return", "evaluation")
LONGEST_VALUE = 40
"""Characters of a value in the list of differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one case in both run directories."""

    what: str
    """The case: ``default × 2``, or a job's name."""
    figure: str
    """``throughput`` or ``efficiency``; of jobs ``env_steps/s``, ``return`` (in training) or ``evaluation``."""
    a: Estimate
    b: Estimate
    ratio: Estimate | None
    """B divided by A; None where a value is not positive."""
    bound: str = ""
    """The sides that are upper bounds, from measurements that were cut off: ``a``, ``b`` or ``ab``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    kind: Kind
    a: Path
    b: Path
    pairs: Sequence[Pair]
    differences: Sequence[tuple[str, str, str]]
    """Other differences: the name, the value in A, the value in B."""
    only_a: Sequence[str]
    only_b: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """The content of ``--json``."""
        differences = [{"what": what, "a": a, "b": b} for what, a, b in self.differences]
        return {**asdict(self), "a": str(self.a), "b": str(self.b), "differences": differences}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    kind: Kind
    cases: Mapping[str, Mapping[str, Sequence[float]]]
    """Case → figure → one value per repeat or seed."""
    bounds: Collection[str] = ()
    """Cases whose values are upper bounds."""
    facts: Mapping[str, Any]
    """What may explain a difference: learner, machine, versions."""


def compare(run_a: Path, run_b: Path) -> Comparison:
    """Compare the cases that both run directories have.

    :raises UsageError: for directories without results, of different kinds, or with nothing in common.
    """
    a, b = (_benchmark(run) if samples.is_benchmark(run) else _experiment(run) for run in (run_a, run_b))
    if a.kind != b.kind:
        article = {"benchmark": "a benchmark", "experiment": "an experiment"}
        raise UsageError(
            f"{run_a} is {article[a.kind]} and {run_b} is {article[b.kind]}: give two benchmarks or two experiments"
        )
    pairs = [pair for what in a.cases if what in b.cases for pair in _pairs(what, a, b)]
    if not pairs:
        names = "Baselines and levels" if a.kind == "benchmark" else "Names of finished jobs"
        raise UsageError(
            f"{run_a} and {run_b} have nothing in common: the first has {names_of(list(a.cases))}, the second has"
            f" {names_of(list(b.cases))}. {names} must agree"
        )
    return Comparison(
        kind=a.kind,
        a=run_a,
        b=run_b,
        pairs=pairs,
        differences=[
            (name.replace("_", " "), _short(a.facts.get(name)), _short(b.facts.get(name)))
            for name in dict.fromkeys([*a.facts, *b.facts])
            if a.facts.get(name) != b.facts.get(name)
        ],
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
                cases[name]["efficiency"] = [one.throughput / alone[one.repeat] / ideal for one in counted]
    plan = bench.plan
    work = {DIFFERENT_WORK: ", ".join(map(str, plan.get("jobs") or ())), **_prefixed("work", plan.get("work"))}
    learner = ", ".join(bench.learners) or plan.get("learner")
    facts = {**work, "learner": learner, **_prefixed("", plan.get("machine")), **_prefixed("", plan.get("versions"))}
    return _Side(kind="benchmark", cases=cases, bounds=bounds, facts=facts)


def _experiment(run_dir: Path) -> _Side:
    """Jobs by name and point of their matrix; their seeds are the values."""
    groups: dict[str, list[SummaryRow]] = {}
    snapshot = control.status(run_dir)
    for row in snapshot.rows:
        groups.setdefault(row["job_id"].removesuffix(f"-s{row['seed']}"), []).append(row)
    metrics = job_metrics.gather(run_dir).jobs
    speeds = {job.job_id: job.env_steps / job.wall_s for job in metrics if job.env_steps}
    cases = {name: _values(rows, speeds) for name, rows in groups.items()}
    session = run_reader.last_session(snapshot.paths.provenance)
    facts = {
        "learner": ", ".join(sorted({row["learner"] for row in snapshot.rows if row["learner"] is not None})),
        **{name: session.get(name) for name in ("host", "platform", "physical_cores", "cpu_quota", "jobs_at_once")},
        **_prefixed("", session.get("versions")),
        **_prefixed("git", session.get("git")),
    }
    return _Side(kind="experiment", cases={name: values for name, values in cases.items() if values}, facts=facts)


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
    known = {name: [value for value in values if value is not None] for name, values in figures.items()}
    return {name: values for name, values in known.items() if values}


def _pairs(what: str, a: _Side, b: _Side) -> Iterator[Pair]:
    bound = f"{'a' if what in a.bounds else ''}{'b' if what in b.bounds else ''}"
    for figure, a_values in a.cases[what].items():
        b_values = b.cases[what].get(figure)
        if not a_values or not b_values:
            continue
        quotient = ratio(b_values, a_values) if min(*a_values, *b_values) > 0 and bound != "ab" else None
        if quotient is not None and bound:  # A is at most so much, so the ratio is at least so much; B: at most
            quotient = replace(quotient, high=None) if bound == "a" else replace(quotient, low=None)
        a_median, b_median = _estimate(figure, a_values, "a" in bound), _estimate(figure, b_values, "b" in bound)
        yield Pair(what=what, figure=figure, a=a_median, b=b_median, ratio=quotient, bound=bound)


def _estimate(figure: str, values: Sequence[float], is_bound: bool) -> Estimate:
    """As in the reports: an upper bound has no ``low``, and returns have no natural zero."""
    result = location(values) if figure in RETURNS else estimate(values)
    return replace(result, low=None) if is_bound else result


def _prefixed(prefix: str, values: Any) -> dict[str, Any]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {f"{prefix} {name}".strip(): value for name, value in items}


def _short(value: Any) -> str:
    text = "–" if value is None or value == "" else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def names_of(cases: Sequence[str]) -> str:
    """The first five names, for a sentence."""
    return listed(cases, 5) if cases else "nothing that is finished"
