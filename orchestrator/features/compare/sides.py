"""One run directory, or file of measurements, as it is compared with others: its cases, with their
values. Read-only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.analysis import contention, run_reader
from orchestrator.analysis.job_values import EVALUATION, TRAINING
from orchestrator.client import run_snapshot
from orchestrator.client.run_snapshot import Snapshot
from orchestrator.core.decoding import parsed_json
from orchestrator.core.errors import UsageError
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.front_end import option
from orchestrator.core.paths import RunPaths
from orchestrator.features.compare import chosen_jobs
from orchestrator.features.compare.chosen_jobs import Chooser
from orchestrator.features.compare.compared_figure import checked_figure, value_of, without_value
from orchestrator.features.compare.declared_settings import (
    declared_jobs,
    points_of_cases,
    settings_of_cases,
)
from orchestrator.features.compare.job_groups import cases_of
from orchestrator.features.compare.protocols import Protocols, protocol_of
from orchestrator.ledger import SummaryRow

Kind = Literal["benchmark", "experiment"]

DIFFERENT_WORK = "the jobs that were measured"
RETURNS = ("return", "evaluation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is compared of one run directory, or of one file of measurements."""

    path: Path
    kind: Kind
    cases: Mapping[str, Mapping[str, Sequence[float]]]
    """Case → figure → one value per repeat or seed."""
    bounds: Collection[str] = ()
    """Cases whose values are upper bounds."""
    less_is_better: Collection[str] = ()
    """Figures of which less is better."""
    without_aim: Collection[str] = ()
    """Figures of which it is not known whether more or less is better."""
    facts: Mapping[str, Any]
    """What may explain a difference: learner, machine, versions."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Case → what its jobs are trained with, by dotted key of the job file."""
    points: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Case → the point of a search or a matrix that its jobs are, by dotted key; empty for a job that
    is none."""
    protocols: Protocols = field(default_factory=dict)
    """Case → how its values were reached."""
    chooser: Chooser = field(default_factory=Chooser)
    """What has chosen jobs by their values."""
    chosen: Collection[str] = ()
    """Cases by whose values :attr:`chooser` chooses."""


def read(run: Path, by: str | None) -> Side:
    """:param by: the figure that jobs are compared by; None: speed and returns.

    :raises UsageError: it has no results, or no such figure.
    """
    if not run.is_file() and not _is_benchmark(run):
        return _experiment(run, by)
    if by is not None:
        raise UsageError(
            f"{run} is a benchmark: {option('by', by)} is for experiments, whose jobs have measures"
        )
    return _machine(run) if run.is_file() else _benchmark(run)


def _is_benchmark(run_dir: Path) -> bool:
    folder = RunPaths(run_dir).bench
    return any((folder / name).exists() for name in ("plan.json", "ranks.json"))


def _benchmark(run_dir: Path) -> Side:
    """The measurements of a benchmark, in ``cells.jsonl``: the last one of each repeat counts."""
    folder = RunPaths(run_dir).bench
    plan = run_reader.read_json_object(folder / "plan.json")
    plan = plan or run_reader.read_json_object(folder / "ranks.json") or {}
    found: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    learners: set[str] = set()
    try:
        file = folder / "cells.jsonl"
        lines = read_regular(file).split(b"\n")[:-1] if file.exists() else []
        for record in map(parsed_json, filter(None, lines)):
            learners |= {one["learner"] for one in record["processes"] if one.get("learner")}
            if record["status"] in ("ok", "cut"):
                key = (str(record["arm"]), int(record["level"]))
                found.setdefault(key, {})[int(record["repeat"])] = record
        arms = [*(plan.get("arms") or ()), *(arm for arm, _ in found)]
        cases: dict[str, dict[str, Sequence[float]]] = {}
        bounds = []
        for arm, level in sorted(found, key=lambda key: (arms.index(key[0]), key[1])):
            records = found[arm, level]
            name = f"{arm} × {level}"
            values = {repeat: float(one["throughput"]) for repeat, one in sorted(records.items())}
            cases[name] = {"throughput": list(values.values())}
            bounds += [name] if _is_cut(records) else []
            # In pairs of the same repeat where both exist, as in the benchmark's own report.
            lowest = min(other for other_arm, other in found if other_arm == arm)
            alone = found[arm, lowest]
            if level != lowest and not _is_cut(alone):
                capacity = max(1, plan["machine"]["capacity"] // plan["work"]["cores"])
                ideal = min(level, capacity) / lowest
                cases[name]["efficiency"] = [
                    value / float(alone[repeat]["throughput"]) / ideal
                    for repeat, value in values.items()
                    if repeat in alone
                ]
        work = {
            DIFFERENT_WORK: ", ".join(map(str, plan.get("jobs") or ())),
            **_with_prefix("work", plan.get("work")),
        }
        facts = {
            **work,
            "learner": ", ".join(sorted(learners)) or plan.get("learner"),
            **_with_prefix("", plan.get("machine")),
            **_with_prefix("", plan.get("versions")),
        }
    except (
        OSError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ZeroDivisionError,
    ) as error:
        advice = "measure again in another --run-dir"
        raise UsageError(f"{folder}: cannot be compared ({error!r:.200}); {advice}") from error
    return Side(path=run_dir, kind="benchmark", cases=cases, bounds=bounds, facts=facts)


def _is_cut(records: Mapping[int, Mapping[str, Any]]) -> bool:
    """Whether a measurement was cut off, so that its throughput is an upper bound."""
    return any(record["status"] == "cut" for record in records.values())


def _machine(path: Path) -> Side:
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
    return Side(
        path=path,
        kind="benchmark",
        cases=cases,
        bounds=bounds,
        less_is_better=less_is_better,
        facts=facts,
    )


def _numbers(values: Sequence[Any]) -> list[float]:
    """``values`` without what is no number."""
    return [number for number in map(run_reader.finite, values) if number is not None]


def _experiment(run_dir: Path, by: str | None) -> Side:
    """Jobs by name and point of their matrix; their seeds are the values."""
    snapshot = run_snapshot.status(run_dir)
    if by is None:
        figures = list(RETURNS)
        counted = [row for row in snapshot.rows if row["state"] == "SUCCEEDED"]
        groups = cases_of(counted)
        speeds = _speeds(run_dir)
        found = {name: _speed_and_returns(rows, speeds) for name, rows in groups.items()}
    else:
        figures = [checked_figure(run_dir, by, snapshot.rows)]
        values = {row["job_id"]: value_of(row, by) for row in snapshot.rows}
        counted = [row for row in snapshot.rows if values[row["job_id"]] is not None]
        if snapshot.rows and not counted:
            raise UsageError(f"{run_dir}: {without_value(snapshot.rows, by)}")
        groups = cases_of(counted)
        found = {name: {by: _values(rows, values)} for name, rows in groups.items()}
    cases = {name: of_case for name, of_case in found.items() if of_case}
    declared = declared_jobs(snapshot.paths) if cases else []
    settings = settings_of_cases(declared)
    points = points_of_cases(declared)
    chooser = Chooser()
    if cases:
        chooser = chosen_jobs.chooser(snapshot.paths, with_objectives=False)
    ids = {name: [row["job_id"] for row in groups[name]] for name in cases}
    return Side(
        path=run_dir,
        kind="experiment",
        cases=cases,
        without_aim=[one for one in figures if one not in (*RETURNS, EVALUATION, TRAINING)],
        facts=_facts(snapshot),
        settings={name: settings[name] for name in cases if name in settings},
        points={name: points[name] for name in cases if name in points},
        protocols={name: set(map(protocol_of, groups[name])) for name in cases},
        chooser=chooser,
        chosen={name for name in cases if chooser.has_chosen_among(ids[name])},
    )


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    session = run_reader.last_session(snapshot.paths.provenance)
    return {
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


def _speeds(run_dir: Path) -> dict[str, float]:
    """job_id → env_steps/s of its iterations, without start-up, evaluation and videos."""
    metrics = contention.measure(run_dir)
    return {job.job_id: job.env_steps / job.wall_s for job in metrics if job.env_steps}


def _values(rows: Iterable[SummaryRow], values: Mapping[str, float | None]) -> list[float]:
    found = (values[row["job_id"]] for row in rows)
    return [value for value in found if value is not None]


def _speed_and_returns(
    rows: Sequence[SummaryRow], speeds: Mapping[str, float]
) -> dict[str, Sequence[float]]:
    """Figure → its values over ``rows``, which have succeeded; without figures that have none.

    :param speeds: as of :func:`_speeds`.
    """
    figures = {
        "env_steps/s": [speeds.get(row["job_id"]) for row in rows],
        "return": [row["ep_rew_mean"] for row in rows],
        "evaluation": [row["eval_mean"] for row in rows],
    }
    known = {
        name: [value for value in values if value is not None] for name, values in figures.items()
    }
    return {name: values for name, values in known.items() if values}


def _with_prefix(prefix: str, values: Any) -> dict[str, Any]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {f"{prefix} {name}".strip(): value for name, value in items}
