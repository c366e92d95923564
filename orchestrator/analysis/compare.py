"""Comparison of two run directories (other machine, version or settings): ratios with intervals.

Two benchmarks are compared by baseline and level, two experiments by job, over its seeds. Read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.analysis.statistics import Estimate, estimate, location, ratio
from orchestrator.core.errors import UsageError
from orchestrator.core.text import listed

Kind = Literal["benchmark", "experiment"]

DIFFERENT_WORK = "the jobs that were measured"
RETURNS = ("return", "evaluation")
SHOWN = 40
"""Characters of a value in the list of differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure of one subject in both run directories."""

    what: str
    """The subject: ``default × 2``, or a job's name."""
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
        return {
            "kind": self.kind,
            "a": str(self.a),
            "b": str(self.b),
            "pairs": list(map(asdict, self.pairs)),
            "differences": [{"what": what, "a": a, "b": b} for what, a, b in self.differences],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The figures of a baseline at a level, or of a job, in one run directory."""

    values: Mapping[str, Sequence[float]]
    """Figure → one value per repeat or seed."""
    bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    kind: Kind
    subjects: Mapping[str, _Subject]
    facts: Mapping[str, Any]
    """What may explain a difference: learner, machine, versions."""


def compare(run_a: Path, run_b: Path) -> Comparison:
    """Compare the subjects that both run directories have.

    :raises UsageError: for directories without results, of different kinds, or with nothing in common.
    """
    a, b = _side(run_a), _side(run_b)
    if a.kind != b.kind:
        article = {"benchmark": "a benchmark", "experiment": "an experiment"}
        raise UsageError(
            f"{run_a} is {article[a.kind]} and {run_b} is {article[b.kind]}: give two benchmarks or two experiments"
        )
    common = [what for what in a.subjects if what in b.subjects]
    pairs = [pair for what in common for pair in _pairs(what, a.subjects[what], b.subjects[what])]
    if not pairs:
        names = "Baselines and levels" if a.kind == "benchmark" else "Names of finished jobs"
        raise UsageError(
            f"{run_a} and {run_b} have nothing in common: the first has {names_of(list(a.subjects))}, the second has"
            f" {names_of(list(b.subjects))}. {names} must agree"
        )
    return Comparison(
        kind=a.kind,
        a=run_a,
        b=run_b,
        pairs=pairs,
        differences=_differences(a.facts, b.facts),
        only_a=[what for what in a.subjects if what not in b.subjects],
        only_b=[what for what in b.subjects if what not in a.subjects],
    )


def _side(run_dir: Path) -> _Side:
    from orchestrator.analysis import samples

    return _benchmark(run_dir) if samples.is_benchmark(run_dir) else _experiment(run_dir)


def _benchmark(run_dir: Path) -> _Side:
    from orchestrator.analysis import samples
    from orchestrator.analysis.samples import LevelSamples

    bench = samples.read(run_dir)

    def subject(level: LevelSamples, base: LevelSamples) -> _Subject:
        values: dict[str, Sequence[float]] = {"throughput": level.throughputs}
        # In pairs of the same repeat where both exist, as in the benchmark's own report.
        alone = {sample.repeat: sample.throughput for sample in base.samples}
        if level is not base and not base.at_most:
            ideal = min(level.processes, bench.capacity) / base.processes
            values["efficiency"] = [
                sample.throughput / alone[sample.repeat] / ideal for sample in level.samples if sample.repeat in alone
            ]
        return _Subject(values=values, bound=level.at_most)

    subjects = {
        f"{baseline} × {level}": subject(samples_, levels[min(levels)])
        for baseline, levels in bench.baselines.items()
        for level, samples_ in levels.items()
    }
    plan = bench.plan
    work = {DIFFERENT_WORK: ", ".join(map(str, plan.get("jobs") or ())), **_prefixed("work", plan.get("work"))}
    learner = ", ".join(bench.learners) or plan.get("learner")
    facts = {**work, "learner": learner, **_prefixed("", plan.get("machine")), **_prefixed("", plan.get("versions"))}
    return _Side(kind="benchmark", subjects=subjects, facts=facts)


def _experiment(run_dir: Path) -> _Side:
    """Jobs by name and point of their matrix; their seeds are the values."""
    from orchestrator.analysis import job_metrics, run_reader
    from orchestrator.experiment import control

    groups: dict[str, list[Mapping[str, Any]]] = {}
    snapshot = control.status(run_dir)
    for row in snapshot.rows:
        suffix = f"-s{row['seed']}"
        groups.setdefault(row["job_id"].removesuffix(suffix), []).append(row)
    speeds = {
        job.job_id: job.env_steps / job.wall_s
        for job in job_metrics.gather(run_dir).jobs
        if job.env_steps and job.wall_s
    }
    values = {name: _values(rows, speeds) for name, rows in groups.items()}
    session = run_reader.last_session(snapshot.paths.provenance)
    facts = {
        "learner": ", ".join(sorted({row["learner"] for row in snapshot.rows if row["learner"] is not None})),
        **{name: session.get(name) for name in ("host", "platform", "physical_cores", "cpu_quota", "jobs_at_once")},
        **_prefixed("", session.get("versions")),
        **_prefixed("git", session.get("git")),
    }
    subjects = {name: _Subject(values=figures) for name, figures in values.items() if figures}
    return _Side(kind="experiment", subjects=subjects, facts=facts)


def _values(rows: Sequence[Mapping[str, Any]], speeds: Mapping[str, float]) -> dict[str, Sequence[float]]:
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


def _pairs(what: str, a: _Subject, b: _Subject) -> list[Pair]:
    bound = f"{'a' if a.bound else ''}{'b' if b.bound else ''}"
    return [
        _pair(what, figure, a.values[figure], b.values[figure], bound)
        for figure in a.values
        if a.values[figure] and b.values.get(figure)
    ]


def _pair(what: str, figure: str, a: Sequence[float], b: Sequence[float], bound: str) -> Pair:
    quotient = ratio(b, a) if min(*a, *b) > 0 and bound != "ab" else None
    if quotient is not None and bound == "a":  # A is at most so much, so the ratio is at least so much
        quotient = Estimate(quotient.median, quotient.low, None, quotient.n)
    elif quotient is not None and bound == "b":
        quotient = Estimate(quotient.median, None, quotient.high, quotient.n)
    estimates = {side: _estimate(figure, values, side in bound) for side, values in (("a", a), ("b", b))}
    return Pair(what=what, figure=figure, a=estimates["a"], b=estimates["b"], ratio=quotient, bound=bound)


def _estimate(figure: str, values: Sequence[float], is_bound: bool) -> Estimate:
    """As in the reports: an upper bound has no ``low``, and returns have no natural zero."""
    result = location(values) if figure in RETURNS else estimate(values)
    return Estimate(result.median, None, result.high, result.n) if is_bound else result


def _prefixed(prefix: str, values: Any) -> dict[str, Any]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {f"{prefix} {name}".strip(): value for name, value in items}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (name.replace("_", " "), _short(a.get(name)), _short(b.get(name)))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def _short(value: Any) -> str:
    text = "–" if value is None or value == "" else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def names_of(subjects: Sequence[str]) -> str:
    """The first five names, for a sentence."""
    return listed(subjects, 5) if subjects else "nothing that is finished"
