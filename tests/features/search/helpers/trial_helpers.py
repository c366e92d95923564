"""Run directories of searches that nothing has trained: a declaration, and a ledger with jobs and
events."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from command_helpers import HOPPER

from orchestrator.core.errors import SpecError
from orchestrator.core.job import Job, Paused, Pending, Succeeded
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import search_events
from orchestrator.features.search.declaration import written
from orchestrator.features.search.declaration.declared_search import jobs_at, trial_jobs
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.jobfile import Experiment, from_mapping
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob

SPACE = {
    "ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "policy_kwargs.net_arch": {"choices": [[32, 32], [64, 64]]},
}
TOTAL = 1000


@dataclass(frozen=True, kw_only=True)
class Told:
    """What has become of a trial."""

    values: Sequence[float] | None = None
    reached: Sequence[float | None] = ()
    is_promoted: bool = False
    """Whether it trains on from its last rung."""
    parent: int | None = None
    reevaluates: int | None = None
    role: str = ""
    """``"race"``: a further seed of the trial that it repeats; otherwise, if it is not empty: the
    unchanged job is trained."""
    seed: int = 1000
    """Of a further seed."""
    why: str = ""
    """Not empty: it has failed."""
    point: Mapping[str, Any] | None = None


def point_of(number: int) -> dict[str, Any]:
    return {
        "ppo.learning_rate": 0.001 + number / 10_000,
        "policy_kwargs.net_arch": [[32, 32], [64, 64]][number % 2],
    }


def search_run(
    root: Path,
    trials: Sequence[Told],
    /,
    *,
    seeds: Sequence[int] = (0,),
    is_over: bool = True,
    starts_from: str | None = None,
    **search: Any,
) -> RunPaths:
    """A run directory with these trials; their jobs have 1,000 env_steps, with rungs at 100 and
    300.

    :param starts_from: the job whose policy those of trials with a parent started from.
    :param search: keys of ``[search]``.
    """
    table = {"sampler": "random", "trials": len(trials), "space": SPACE, **search}
    table.setdefault("scheduler", {"min_env_steps": 100})
    job = {
        "name": "hopper",
        "xml": str(HOPPER),
        "task": "forward",
        "total_timesteps": TOTAL,
        "seeds": list(seeds),
    }
    data = {"name": "found", "jobs": [job], "search": table}
    experiment = from_mapping(data, source="jobs.toml", base=root.parent)
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    written.declare(paths, experiment, {})
    ledger = Ledger.create(paths.ledger)
    events = [SearchEvent(kind="began", content={"lanes": 2})]
    position = 0
    for number, told in enumerate(trials):
        jobs: Sequence[Job] = ()
        with contextlib.suppress(SpecError):  # a point outside of the space has no jobs
            jobs = _jobs(experiment, number, told)
        steps = _steps(told)
        pause_at = None if told.values is not None else 100 * 3 ** min(len(told.reached), 2)
        for one in jobs:
            start: dict[str, Any] = {}
            if starts_from is not None and told.parent is not None:
                directory = paths.root / "jobs" / starts_from
                start = {"init": str(directory), "init_sha256": "0" * 64, "init_env_steps": TOTAL}
            declared = replace(one, spec=replace(one.spec, pause_at=pause_at, **start))
            ledger.put_jobs([DeclaredJob(position=position, job=declared, robot_hash="0" * 64)])
            position += 1
            if told.values is not None:
                ledger.set_state(one.job_id, Succeeded())
            elif told.reached and not told.is_promoted:
                ledger.set_state(one.job_id, Paused(at_rung=True))
            else:
                ledger.set_state(one.job_id, Pending())
            ledger.set_progress([(one.job_id, steps, 1.0, None, None)])
        content: dict[str, Any] = {
            "point": _point(number, told),
            "jobs": [one.job_id for one in jobs],
        }
        if told.role:
            content["role"] = told.role
        if told.parent is not None:
            content["parent"] = told.parent
        if told.reevaluates is not None:
            content["reevaluates"] = told.reevaluates
        events.append(SearchEvent(kind="asked", trial=None, content=content))
        for rung, value in enumerate(told.reached):
            reached = {"value": value, "env_steps": 100 * 3**rung * len(jobs)}
            events.append(SearchEvent(kind="reached", trial=number, content=reached))
            if rung + 1 < len(told.reached) or told.is_promoted or told.values is not None:
                events.append(
                    SearchEvent(kind="promoted", trial=number, content={"goal": rung + 1})
                )
        if told.values is not None or told.why:
            over = {
                "values": told.values,
                "measures": None,
                "env_steps": steps * len(jobs),
                "why": told.why,
            }
            if "race" in search and told.values is not None:
                over["of_seeds"] = [told.values[0]] * len(jobs)
            events.append(SearchEvent(kind="over", trial=number, content=over))
    if is_over:
        events.append(SearchEvent(kind="ended", content={}))
    ledger.close()
    with search_events.writing(paths) as database:
        database.add(events)
    return paths


def _jobs(experiment: Experiment, number: int, told: Told) -> Sequence[Job]:
    if told.role == "race":
        assert told.reevaluates is not None
        return trial_jobs(experiment, told.reevaluates, _point(number, told), [told.seed])
    if told.role:
        return jobs_at(experiment, f"t{number:05d}-{told.role}", None)
    return trial_jobs(experiment, number, _point(number, told))


def _point(number: int, told: Told) -> Mapping[str, Any]:
    if told.role == "race":
        return told.point or point_of(told.reevaluates or 0)
    return {} if told.role else told.point or point_of(number)


def _steps(told: Told) -> int:
    if told.values is not None:
        return TOTAL
    return 100 * 3 ** (len(told.reached) - 1) if told.reached else 0
