"""Run directories made by hand, of any size, without training, for `report` to read.

By hand, to see what a report of 500 jobs × 500 iterations takes: ``python
tests/helpers/report_helpers.py DIR 500 500``, then ``/usr/bin/time -v python -m orchestrator report
DIR``.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

from orchestrator.ledger.rows import DeclaredJob

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from supervisor_helpers import make_job

from orchestrator import report
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.job import (
    Attempt,
    AttemptOutcome,
    Cause,
    Failed,
    Pending,
    Running,
    State,
    Succeeded,
)
from orchestrator.core.paths import RunPaths
from orchestrator.core.timing_columns import COLUMNS
from orchestrator.ledger import Ledger
from orchestrator.report import drawing
from orchestrator.report.document import Document, Table

PROGRESS = (
    "time/iterations",
    "time/total_timesteps",
    "rollout/ep_rew_mean",
    "train/loss",
    "train/approx_kl",
)
TIMINGS = tuple(name for name in COLUMNS if name != "n_cpus")
STEPS = 2048
"""env_steps of an iteration."""
BEGUN = 1.8e9


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A job of a run directory and its outcome."""

    name: str = "robot"
    seed: int = 0
    suffix: str = ""
    point: Mapping[str, Any] = field(default_factory=dict)
    iterations: int = 5
    state: str = "SUCCEEDED"
    message: str = "the knee fell off"
    preview: Callable[[], bytes] | None = None
    evaluated: float | None = None
    """Mean return of its evaluation."""
    eval_length: float | None = None
    eval_finding: str | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    case: str = ""
    """The job's id without its seed, where it shall not be made of a number and the suffix."""
    init: str | None = None
    attempts: int = 1
    before: Cause = Cause.SIGNAL
    """Why the attempts before the last one ended."""
    ranks: int = 1
    mode: str = "allreduce"
    start: Literal["exec", "fork"] | None = None
    why_exec: str = ""
    iteration_s: float = 1.0
    """Wall time; two fifths of it are spent in all-reduce where there are several ranks."""

    def job_id(self, number: int) -> str:
        return f"{self.case or f'j{number}{self.suffix}'}-s{self.seed}"


def make_run_dir(root: Path, jobs: Sequence[Trained], *, cpus: int = 2) -> RunPaths:
    """A run directory as after a run, or as left by a supervisor that died in the middle of one."""
    root.mkdir(parents=True)
    paths, rng = RunPaths(root), random.Random(0)
    ledger = Ledger.create(paths.ledger)
    declared = []
    numbers: dict[tuple[str, str], int] = {}
    ids = []
    trained: dict[str, int] = {}
    """By job: env_steps of its policy, with those of the jobs before it."""
    for job in jobs:
        number = numbers.setdefault((job.name, job.suffix), len(numbers))
        ids.append(job.job_id(number))
        spec = {
            "name": job.name,
            "seed": job.seed,
            "total_timesteps": STEPS * job.iterations or STEPS,
        }
        before = trained.get((job.init or "").removeprefix("job:"))
        trained[ids[-1]] = (before or 0) + job.iterations * STEPS
        spec |= {"mode": job.mode, "init": job.init, "init_env_steps": before}
        declared.append(replace(make_job(ids[-1], spec=spec, ranks=job.ranks), point=job.point))
    ledger.put_jobs(DeclaredJob(position=place, job=job) for place, job in enumerate(declared))
    free_at = [BEGUN] * cpus
    for job_id, job in zip(ids, jobs, strict=True):
        if job.state == "PENDING":
            continue
        returns = write_tables(paths, job_id, job, rng)
        if job.preview is not None:
            paths.job(job_id).preview.write_bytes(job.preview())
        for number in range(job.attempts):
            cpu = min(range(cpus), key=free_at.__getitem__)
            started = free_at[cpu]
            free_at[cpu] += 10.0 + job.iterations
            last = number == job.attempts - 1
            end_attempt(ledger, job_id, number, cpu, started, free_at[cpu], job, returns, last=last)
    ledger.commit()
    ledger.close()
    paths.provenance.write_text(
        json.dumps([{"host": "here", "physical_cores": cpus, "cpu_quota": None}])
    )
    return paths


class Page(HTMLParser):
    """Tags with their attributes, and the visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def made(root: Path, jobs: list[Trained]) -> tuple[dict[str, Any], Page]:
    """Make the report of a new run directory with ``jobs``; return its numbers and its page."""
    make_run_dir(root, jobs)
    page = report.make(root)
    return json.loads((root / "report/report.json").read_text()), Page(page)


def rows(document: Document, title: str) -> list[str]:
    """The rows of all tables of a section, their cells joined."""
    return [
        " | ".join(cell.text for cell in row)
        for section in document.sections
        if section.title == title
        for part in section.parts
        if isinstance(part, Table)
        for row in part.rows
    ]


def end_attempt(
    ledger: Ledger,
    job_id: str,
    number: int,
    cpu: int,
    started: float,
    ended: float,
    job: Trained,
    returns: Sequence[float],
    *,
    last: bool,
) -> None:
    attempt = Attempt(
        job_id=job_id,
        number=number,
        cpus=(cpu,),
        gpus=(),
        pid=None,
        pid_start=None,
        started_at=started,
    )
    ledger.start_attempt(attempt, queue_s=1.0)
    if last and job.state == "RUNNING":
        ledger.set_state(job_id, Running(attempt=attempt))
        return
    good = last and job.state == "SUCCEEDED"
    failed = AttemptOutcome(cause=Cause.ERROR if last else job.before, message=job.message)
    record = ExitRecord(
        code=0 if good else 1,
        message="" if good else job.message,
        env_steps=STEPS * job.iterations,
        ep_rew_mean=returns[-1] if returns else None,
        ep_rew_mean_first=returns[0] if returns else None,
        eval_mean=job.evaluated,
        eval_length=job.eval_length,
        eval_finding=job.eval_finding,
        measures=dict(job.measures) or None,
        cpu_s=0.8 * (ended - started),
        wall_s=ended - started,
        start=job.start,
        why_exec=job.why_exec,
    )
    ledger.end_attempt(
        job_id,
        number,
        ended_at=ended,
        wall_s=ended - started,
        returncode=record.code,
        outcome=AttemptOutcome(cause=None) if good else failed,
        max_rss_mib=200.0,
        record=record,
    )
    state: State = (
        Succeeded()
        if good
        else Failed(cause=Cause.ERROR, message=job.message)
        if last
        else Pending()
    )
    ledger.set_state(job_id, state)


def write_tables(paths: RunPaths, job_id: str, job: Trained, rng: random.Random) -> list[float]:
    """``progress.csv`` and ``timings.csv``; returns the column of returns."""
    folder, iterations = paths.job(job_id), job.iterations
    allreduce_s = 0.4 * job.iteration_s if job.ranks > 1 else 0.0
    folder.root.mkdir(parents=True)
    height = rng.uniform(100, 1000)
    returns = [
        height * (1 - math.exp(-3 * i / iterations)) + rng.gauss(0, 5)
        for i in range(1, iterations + 1)
    ]
    progress = [",".join(PROGRESS)]
    progress += [
        f"{i},{i * STEPS},{value!r},0.1234567,0.0123" for i, value in enumerate(returns, 1)
    ]
    timings = [",".join(TIMINGS)]
    timings += [
        f"{i},{i * STEPS},{job.iteration_s},0.6,0.3,0.2,0.01,0.4,0.2,0.1,0.8,0.1,1,20,0.0,200.0,2,{1000 + i}.5"
        f",{allreduce_s}"
        for i in range(1, iterations + 1)
    ]
    folder.progress_csv.write_text("\n".join(progress) + "\n")
    folder.timings_csv.write_text("\n".join(timings) + "\n")
    return returns


def film_strip(colour: tuple[int, int, int] = (200, 120, 40)) -> bytes:
    """A preview of the size that `play` writes."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    noise = Image.effect_noise((1940, 240), 40).convert("RGB")
    Image.blend(noise, Image.new("RGB", noise.size, colour), 0.7).save(buffer, "PNG")
    return buffer.getvalue()


ARMS = (
    "pinned",
    "threads",
    "default",
    "pool-fork",
    "pool-spawn",
    "pool-fork-pinned",
    "pool-spawn-pinned",
)
BUDGETLESS = {"default", "pool-fork", "pool-spawn"}


def make_bench_dir(
    root: Path, *, levels: Sequence[int] = (1, 2, 4), repeats: int = 5, cores: int = 2
) -> Path:
    """A finished benchmark in which arms without a thread budget collapse; with tuning, schedule
    and certificate."""
    folder = RunPaths(root).bench
    folder.mkdir(parents=True)
    plan = {
        "format": 1,
        "name": "robots",
        "source": "jobs/robots.toml",
        "jobs": ["hopper-s0"],
        "work": {
            "n_envs": 8,
            "steps_an_iteration": 2048,
            "updates_an_iteration": 64,
            "cores": 1,
            "threads": 1,
        },
        "learner": "auto",
        "arms": list(ARMS),
        "about_arms": {arm: f"how {arm} starts them" for arm in ARMS},
        "levels": list(levels),
        "repeats": repeats,
        "seconds": 20.0,
        "seed": 0,
        "order": [],
        "machine": {
            "cpu_model": "A <CPU>",
            "physical_cores": cores,
            "capacity": cores,
            "cpu_quota": None,
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "notes": [],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    rng = random.Random(0)
    cells = [
        bench_cell(arm, level, repeat, cores, rng)
        for arm in ARMS
        for level in levels
        for repeat in range(repeats)
    ]
    (folder / "cells.jsonl").write_text(
        "".join(json.dumps(cell) + "\n" for cell in cells) + '{"arm": "torn'
    )
    schedule = {
        str(level): {
            "makespan_s": 70.0 / min(level, cores),
            "lower_bound_s": 60.0 / min(level, cores),
            "jobs": [
                {
                    "job_id": f"robot-{number}-s0",
                    "cpus": [number % min(level, cores)],
                    "started_s": number // min(level, cores) * 10.0,
                    "ended_s": number // min(level, cores) * 10.0 + 10.0,
                    "env_steps": 2048,
                    "state": "SUCCEEDED",
                }
                for number in range(7)
            ],
        }
        for level in levels
    }
    names = [f"robot-{number}-s0" for number in range(7)]
    strong = {
        "format": 1,
        "fingerprints": dict.fromkeys(names, "0" * 64),
        "part": 0.5,
        "total_timesteps": dict.fromkeys(names, 2048),
        "levels": schedule,
    }
    (folder / "strong.json").write_text(json.dumps(strong))
    verdict = {
        "job_id": "<hopper>",
        "verdict": "PASS",
        "reasons": [],
        "notes": ["quiet"],
        "alone_sha256": "ab" * 32,
        "together_sha256": "ab" * 32,
        "resumed_sha256": "ab" * 32,
        "slowdown": {"value": 1.01, "low": 0.99, "high": 1.04, "n": 5},
    }
    odd = {
        **verdict,
        "job_id": "odd-s0",
        "verdict": "FAIL",
        "together_sha256": "cd" * 32,
        "reasons": ["weights differ"],
    }
    certificate = {
        "verdict": "FAIL",
        "jobs": [verdict, odd],
        "left_out": {"big-s0": "needs 4 cores"},
    }
    (root / "certificate.json").write_text(json.dumps(certificate))
    return root


def bench_cell(arm: str, level: int, repeat: int, cores: int, rng: random.Random) -> dict[str, Any]:
    """A line of ``cells.jsonl``: no loss with a thread budget, a collapse without; one arm and
    level is cut off."""
    collapse = 12.0 if arm in BUDGETLESS and level > 1 else 1.0
    cut = arm == "pool-spawn" and level == 4
    slower = max(1.0, level / cores) * rng.gauss(1.0, 0.01)
    phases = {
        "env_s": 4.0,
        "policy_s": 3.0,
        "gae_s": 0.1,
        "backward_s": 3.0,
        "optimizer_s": 2.0,
        "rest_s": 1.5,
    }
    for name in ("backward_s", "optimizer_s"):
        phases[name] *= collapse
    wall = sum(phases.values()) * slower
    processes = [
        {
            "job": f"copy-{number}",
            "env_steps": 20480.0,
            "updates": 640.0,
            "iterations": 10.0,
            "wall_s": wall,
            **{name: seconds * slower for name, seconds in phases.items()},
            "cpu_s": wall / max(1.0, level / cores),
            "run_delay_s": wall * (1 - min(1.0, cores / level))
            + (wall if collapse > 1 else 0.0)
            + 0.01,
            "voluntary_switches": 5.0,
            "involuntary_switches": 50.0 * collapse,
            "throttled_s": 0.0,
            "rss_mib": 270.0,
            "n_threads": 1 if collapse == 1 else cores + 1,
            "import_s": 1.0,
            "first_step_s": 1.2,
            "cpus": [number % cores],
        }
        for number in range(level)
    ]
    return {
        "arm": arm,
        "level": level,
        "repeat": repeat,
        "status": "cut" if cut else "ok",
        "throughput": level * 20480.0 / wall,
        "window_s": wall,
        "started_at": BEGUN,
        "message": "cut off after 60 s" if cut else "",
        "processes": processes,
    }


if __name__ == "__main__":
    strip = film_strip()
    count, length = int(sys.argv[2]), int(sys.argv[3])
    make_run_dir(
        Path(sys.argv[1]),
        [
            Trained(
                name=f"robot-{number // 2}",
                seed=number % 2,
                iterations=length,
                preview=lambda: strip,
            )
            for number in range(count)
        ],
        cpus=16,
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports whose figures are empty: for claims of their text; what is drawn is the claim of
    others."""
    leave_undrawn(monkeypatch)


def leave_undrawn(monkeypatch: pytest.MonkeyPatch, *, but: Collection[str] = ()) -> None:
    """:param but: names of figures that are drawn."""
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
    empty = drawing.Rendered(png=b"", svg=svg)
    render = drawing.render
    monkeypatch.setattr(
        drawing, "render", lambda figure: render(figure) if figure.name in but else empty
    )
