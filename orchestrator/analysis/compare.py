"""Two run directories side by side: another machine, another version, other settings. Ratios with intervals.

Two benchmarks are compared arm by arm and level by level, two experiments job by job, over their seeds. Read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """One figure of one thing on both sides."""

    what: str
    """``default × 2``, or a job's name."""
    figure: str
    """``throughput`` and ``efficiency``; of jobs ``env_steps/s``, ``return`` (of training) and ``evaluation``."""
    a: Estimate
    b: Estimate
    ratio: Estimate | None
    """B against A; None where a value is not positive, so that there is none."""
    bound: str = ""
    """Which sides are bounds from above, of cells that were cut off: ``a``, ``b``, ``ab``."""

    def facts(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "figure": self.figure,
            "a": self.a.facts(),
            "b": self.b.facts(),
            "ratio": None if self.ratio is None else self.ratio.facts(),
            "bound": self.bound,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    kind: Kind
    a: Path
    b: Path
    pairs: Sequence[Pair]
    differences: Sequence[tuple[str, str, str]]
    """What else differs: the thing, as in A, as in B."""
    only_a: Sequence[str]
    only_b: Sequence[str]

    def facts(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "kind": self.kind,
            "a": str(self.a),
            "b": str(self.b),
            "pairs": [pair.facts() for pair in self.pairs],
            "differences": [{"what": what, "a": a, "b": b} for what, a, b in self.differences],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """One side's values of a thing."""

    values: Mapping[str, Sequence[float]]
    """Figure → one value a repeat or seed."""
    bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    kind: Kind
    things: Mapping[str, _Figures]
    facts: Mapping[str, Any]
    """What may explain a difference: learner, machine, versions."""


def compare(run_a: Path, run_b: Path) -> Comparison:
    """Compare what both have.

    :raises UsageError: not run directories, of different kinds, or with nothing in common.
    """
    a, b = _side(run_a), _side(run_b)
    if a.kind != b.kind:
        article = {"benchmark": "a benchmark", "experiment": "an experiment"}
        raise UsageError(f"{run_a} is {article[a.kind]}, {run_b} {article[b.kind]}: two of a kind can be compared")
    pairs = [pair for what in a.things if what in b.things for pair in _pairs(what, a.things[what], b.things[what])]
    if not pairs:
        names = "Arms and levels" if a.kind == "benchmark" else "Names of finished jobs"
        raise UsageError(
            f"{run_a} and {run_b} have nothing in common: one has {names_of(list(a.things))}, the other"
            f" {names_of(list(b.things))}. {names} must agree"
        )
    return Comparison(
        kind=a.kind,
        a=run_a,
        b=run_b,
        pairs=pairs,
        differences=_differences(a.facts, b.facts),
        only_a=[what for what in a.things if what not in b.things],
        only_b=[what for what in b.things if what not in a.things],
    )


def _side(run_dir: Path) -> _Side:
    from orchestrator.analysis import samples

    return _benchmark(run_dir) if samples.is_benchmark(run_dir) else _experiment(run_dir)


def _benchmark(run_dir: Path) -> _Side:
    from orchestrator.analysis import samples
    from orchestrator.analysis.samples import Measured

    bench = samples.read(run_dir)
    things = {}

    def figures(one: Measured, base: Measured) -> _Figures:
        values: dict[str, Sequence[float]] = {"throughput": one.throughputs}
        # In pairs of the same repeat where both are there, as in the benchmark's own report.
        alone = {sample.repeat: sample.throughput for sample in base.samples}
        if one is not base and not base.at_most:
            ideal = min(one.processes, bench.capacity) / base.processes
            values["efficiency"] = [
                sample.throughput / alone[sample.repeat] / ideal for sample in one.samples if sample.repeat in alone
            ]
        return _Figures(values=values, bound=one.at_most)

    for arm, levels in bench.arms.items():
        for level, one in levels.items():
            things[f"{arm} × {level}"] = figures(one, levels[min(levels)])
    plan = bench.plan
    work = {DIFFERENT_WORK: ", ".join(map(str, plan.get("jobs") or ())), **_flat("work", plan.get("work"))}
    learner = ", ".join(bench.learners) or plan.get("learner")
    facts = {**work, "learner": learner, **_flat("", plan.get("machine")), **_flat("", plan.get("versions"))}
    return _Side(kind="benchmark", things=things, facts=facts)


def _experiment(run_dir: Path) -> _Side:
    """Jobs by their name and the point of their matrix; their seeds are the values."""
    from orchestrator.analysis import job_metrics, run_reader
    from orchestrator.experiment import control

    groups: dict[str, list[Mapping[str, Any]]] = {}
    snapshot = control.status(run_dir)
    for row in snapshot.rows:
        suffix = f"-s{row['seed']}"
        groups.setdefault(row["job_id"].removesuffix(suffix), []).append(row)
    speeds = {
        one.job_id: one.env_steps / one.wall_s
        for one in job_metrics.gather(run_dir).jobs
        if one.env_steps and one.wall_s
    }
    found = {name: _values(rows, speeds) for name, rows in groups.items()}
    things = {name: _Figures(values=values) for name, values in found.items() if values}
    last = run_reader.last_session(snapshot.paths.provenance)
    facts = {
        "learner": ", ".join(sorted({row["learner"] for row in snapshot.rows if row["learner"] is not None})),
        **{name: last.get(name) for name in ("host", "platform", "physical_cores", "cpu_quota", "jobs_at_once")},
        **_flat("", last.get("versions")),
        **_flat("git", last.get("git")),
    }
    return _Side(kind="experiment", things=things, facts=facts)


def _values(rows: Sequence[Mapping[str, Any]], speeds: Mapping[str, float]) -> dict[str, Sequence[float]]:
    """What is known of finished seeds.

    :param speeds: job_id → env_steps/s of its iterations, without start-up, evaluation and videos.
    """
    done = [row for row in rows if row["state"] == "SUCCEEDED"]
    found: dict[str, Sequence[float]] = {
        "env_steps/s": [speeds[row["job_id"]] for row in done if row["job_id"] in speeds],
        "return": [row["ep_rew_mean"] for row in done if row["ep_rew_mean"] is not None],
        "evaluation": [row["eval_mean"] for row in done if row["eval_mean"] is not None],
    }
    return {name: values for name, values in found.items() if values}


def _pairs(what: str, a: _Figures, b: _Figures) -> list[Pair]:
    bound = f"{'a' if a.bound else ''}{'b' if b.bound else ''}"
    return [
        _pair(what, figure, a.values[figure], b.values[figure], bound)
        for figure in a.values
        if a.values[figure] and b.values.get(figure)
    ]


def _pair(what: str, figure: str, a: Sequence[float], b: Sequence[float], bound: str) -> Pair:
    positive = min(*a, *b) > 0
    one, other = _one(figure, a, "a" in bound), _one(figure, b, "b" in bound)
    both = ratio(b, a) if positive and bound != "ab" else None
    if both is not None and bound == "a":  # at most so much before: at least so many times
        both = Estimate(both.median, both.low, None, both.n)
    elif both is not None and bound == "b":
        both = Estimate(both.median, None, both.high, both.n)
    return Pair(what=what, figure=figure, a=one, b=other, ratio=both, bound=bound)


def _one(figure: str, values: Sequence[float], is_bound: bool) -> Estimate:
    """As in the reports: a bound from above has no ``low``, and returns have no natural zero."""
    found = location(values) if figure in RETURNS else estimate(values)
    return Estimate(found.median, None, found.high, found.n) if is_bound else found


def _flat(prefix: str, values: Any) -> dict[str, Any]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {f"{prefix} {name}".strip(): value for name, value in items}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    names = dict.fromkeys([*a, *b])
    return [
        (name.replace("_", " "), _short(a.get(name)), _short(b.get(name)))
        for name in names
        if a.get(name) != b.get(name)
    ]


def _short(value: Any) -> str:
    text = "–" if value is None or value == "" else str(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def names_of(things: Sequence[str]) -> str:
    """The first five names, for a sentence."""
    return listed(things, 5) if things else "nothing that is finished"
