"""Run directories of searches made by hand, without training: ledger, events and declaration."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from report_helpers import BEGUN, STEPS, Trained, end_attempt, write_tables
from supervisor_helpers import make_job

from orchestrator.core.job import Paused
from orchestrator.core.paths import RunPaths
from orchestrator.features.search import search_events
from orchestrator.features.search.search_events import SearchEvent
from orchestrator.features.search.search_paths import SearchPaths
from orchestrator.ledger import Ledger
from orchestrator.ledger.rows import DeclaredJob

SPACE: Mapping[str, Any] = {
    "ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "model.geom.thigh.size": {"low": 0.5, "high": 1.5, "multiply": True},
    "policy_kwargs.net_arch": {"choices": [[32], [64, 64]]},
}
RUNGS = (2 * STEPS, 4 * STEPS)
TOTAL = 8 * STEPS
"""``total_timesteps`` of every job."""


def random_point(rng: random.Random) -> dict[str, Any]:
    return {
        "ppo.learning_rate": 10 ** rng.uniform(-4, -2),
        "model.geom.thigh.size": rng.uniform(0.5, 1.5),
        "policy_kwargs.net_arch": rng.choice([[32], [64, 64]]),
    }


def value_at(point: Mapping[str, Any], rng: random.Random) -> float:
    """Mostly decided by the size of the thigh, a little by the learning rate."""
    size, rate = point["model.geom.thigh.size"], point["ppo.learning_rate"]
    return 400 - 600 * abs(size - 1.2) + 20 * (math.log10(rate) + 3) + rng.gauss(0, 20)


def make_search_dir(
    root: Path,
    trials: int,
    *,
    search: Mapping[str, Any] | None = None,
) -> RunPaths:
    """A search of ``trials`` trials with the rungs :data:`RUNGS`. Trials 9, 19, … fail; 19, 39, …
    have no jobs.

    :param search: keys of ``[search]`` that differ from a random search for eval_mean.
    """
    root.mkdir(parents=True)
    paths, rng = RunPaths(root), random.Random(18 + (search or {}).get("seed", 0))
    table = {
        "sampler": "random",
        "objective": "eval_mean",
        "trials": max(1, trials),
        "space": SPACE,
        **(search or {}),
    }
    table.setdefault("scheduler", {"kind": "asha", "min_env_steps": RUNGS[0], "factor": 2})
    objectives = (
        table["objective"] if isinstance(table["objective"], list) else [table["objective"]]
    )
    SearchPaths(paths.root).declaration.parent.mkdir()
    data = {"name": "search", "jobs": [{"name": "walker", "xml": "gone.xml"}], "search": table}
    SearchPaths(paths.root).declaration.write_text(
        json.dumps({"data": data, "base": "/gone", "overrides": {}})
    )
    ledger = Ledger.create(paths.ledger)
    new = [SearchEvent(kind="began", content={"lanes": 2})]
    place, now = 0, BEGUN
    for number in range(trials):
        point, is_unfit = random_point(rng), number % 20 == 19
        ids = [] if is_unfit else [f"walker-t{number:05d}-s0"]
        point |= {"ppo.learning_rate": 7.0} if is_unfit else {}
        parent = (
            number - 1 if table.get("start", "nothing") != "nothing" and number % 3 == 2 else None
        )
        new.append(
            SearchEvent(kind="asked", content={"point": point, "jobs": ids, "parent": parent})
        )
        value = value_at(point, rng)
        fails, goal = number % 10 == 9, number % 3 + 1 if number % 9 < 6 else 1
        iterations = [1, 2, 4, 8][goal]
        for job_id in ids:
            spec = {"name": f"walker-t{number:05d}", "seed": 0, "total_timesteps": TOTAL}
            if parent is not None:
                spec["init"] = f"job:walker-t{parent:05d}-s0"
            ledger.put_jobs(
                [DeclaredJob(position=place, job=replace(make_job(job_id, spec=spec), point=point))]
            )
            place += 1
            state = "FAILED" if fails else "SUCCEEDED"
            job = Trained(
                iterations=iterations, state=state, message="the thigh is too thin", evaluated=value
            )
            returns = write_tables(paths, job_id, job, rng)
            end_attempt(ledger, job_id, 0, number % 2, now, now + 10, job, returns, last=True)
            if not fails and goal < 3:
                ledger.set_state(job_id, Paused())
        now += 5.0
        if fails:
            content = {
                "values": None,
                "measures": None,
                "env_steps": STEPS,
                "why": "the thigh is too thin",
            }
            new.append(SearchEvent(kind="over", trial=number, content=content))
            continue
        for rung, env_steps in enumerate(RUNGS[:goal]):
            content = {"value": value * (rung + 1) / 3, "env_steps": env_steps}
            new.append(SearchEvent(kind="reached", trial=number, content=content))
            if rung + 1 < goal:
                new.append(SearchEvent(kind="promoted", trial=number, content={"goal": rung + 1}))
        if goal == 3:
            measured = [point["model.geom.thigh.size"] * 4, abs(value) / 100][
                : len(table.get("measures", ()))
            ]
            content = {
                "values": [value, -rng.uniform(0, 10)][: len(objectives)],
                "measures": measured,
                "env_steps": TOTAL,
                "why": "",
            }
            new.append(SearchEvent(kind="promoted", trial=number, content={"goal": 2}))
            new.append(SearchEvent(kind="over", trial=number, content=content))
    new.append(SearchEvent(kind="ended", content={}))
    ledger.close()
    with search_events.writing(paths) as database:
        database.add(new)
        database.change("UPDATE events SET at = ? + id", (BEGUN,))
    paths.provenance.write_text(
        json.dumps([{"host": "here", "physical_cores": 2, "cpu_quota": None}])
    )
    return paths
