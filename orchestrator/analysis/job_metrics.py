"""What the jobs of an experiment's run directory tell about how they ran: the witnesses that thieves are named by.

Read-only; of a running experiment, too: a half-written row is left out, and what is missing is None.
"""

from __future__ import annotations

import csv
import json
import math
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.ledger import Ledger
from orchestrator.machine import topology

SUMS = ("wall_s", "cpu_s", "run_delay_s", "throttled_s")
NOT_OF_THE_WORK = ("job_id", "name", "seed", "search_path", "checkpoint_every", "eval_episodes", "video")
"""Keys of a job's spec in which jobs may differ that do the same work."""
LOG_HEAD = 1 << 14
_ON_CPU = re.compile(r"^worker: .*, threads = \d+ on CPU ([\d, ]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """One job."""

    job_id: str
    cpus: frozenset[int]
    """Of its slot, of several ranks those of rank 0, which is the witness; empty where that is not known, or where its
    attempts had different ones."""
    allowed: frozenset[int] | None
    """CPUs that it was allowed when its last training began, by its own word."""
    fewest_cpus: int | None
    """The least number of CPUs it was allowed in any iteration (``n_cpus`` of ``timings.csv``)."""
    spans: Sequence[tuple[float, float]]
    """When its attempts ran, seconds since the epoch."""
    threads: int | None
    """Its thread budget."""
    ranks: int = 1
    work: str
    """What it does, robot and hyperparameters: jobs of equal text differ in their seed alone. Empty if not known."""
    env_steps: float
    """In the iterations that count: all but the first, which warms up."""
    wall_s: float
    """Of these iterations, as all that follows; 0 without any."""
    cpu_s: float | None
    run_delay_s: float | None
    throttled_s: float | None
    n_threads: int | None
    """The most."""

    def share(self, seconds: float | None) -> float | None:
        """Of its wall time."""
        return seconds / self.wall_s if seconds is not None and self.wall_s > 0 else None

    @property
    def runnable(self) -> float | None:
        """Threads that computed or waited for a CPU, on average."""
        if self.cpu_s is None or self.run_delay_s is None:
            return None
        return self.share(self.cpu_s + self.run_delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """An experiment."""

    jobs: Sequence[Witness]
    """Those that have finished an iteration."""
    usable_cpus: int | None
    """CPUs that its supervisor was allowed."""
    online_cpus: int | None
    """CPUs that the machine had switched on."""
    quota: float | None
    """CPUs' worth of time per second, by a cgroup."""
    lanes: int | None
    """Jobs at once."""


def gather(run_dir: Path) -> Evidence:
    """:raises LedgerError: when the ledger is damaged."""
    paths = RunPaths(run_dir)
    spans: dict[str, list[tuple[float, float]]] = {}
    cpus: dict[str, set[tuple[int, ...]]] = {}
    hashes = {}
    for row in _attempts(paths):
        if row["started_at"] is not None:
            spans.setdefault(row["job_id"], []).append((row["started_at"], row["ended_at"] or math.inf))
        cpus.setdefault(row["job_id"], set()).add(tuple(row["cpus"] or ()))
        hashes[row["job_id"]] = row.get("robot_hash")
    jobs = []
    for job_id, had in cpus.items():
        one = _witness(
            paths.job(job_id),
            job_id,
            cpus=next(iter(had)) if len(had) == 1 else (),
            spans=spans.get(job_id, []),
            robot_hash=hashes[job_id],
        )
        if one.wall_s > 0:
            jobs.append(one)
    facts = _last_session(paths.provenance)
    usable = facts.get("cpus")
    return Evidence(
        jobs=jobs,
        usable_cpus=len(usable) if isinstance(usable, list) else None,
        online_cpus=_online(facts),
        quota=_number(facts.get("cpu_quota")),
        lanes=facts.get("jobs_at_once"),
    )


def _attempts(paths: RunPaths) -> list[dict[str, Any]]:
    """With the job's ``robot_hash``; from ``summary.json``, with the last ones only, where there is no ledger."""
    if not paths.ledger.exists():
        found = _json(paths.summary_json)
        return [row for row in found if row.get("attempts")] if isinstance(found, list) else []
    ledger = Ledger.open(paths.ledger, read_only=True)
    try:
        hashes = {row["job_id"]: row["robot_hash"] for row in ledger.summary()}
        return [{**row, "robot_hash": hashes[row["job_id"]]} for row in ledger.attempts()]
    finally:
        ledger.abandon()


def _witness(
    job: JobPaths,
    job_id: str,
    *,
    cpus: Sequence[int],
    spans: Sequence[tuple[float, float]],
    robot_hash: str | None,
) -> Witness:
    spec = _json(job.spec)
    spec = spec if isinstance(spec, dict) else {}
    rows = _rows(job.timings_csv)
    counted = rows[1:] or rows
    sums = {name: _total(counted, name) for name in SUMS}
    begun = rows[0].get("env_steps") if len(rows) > 1 else 0.0
    ended = rows[-1].get("env_steps") if rows else 0.0
    work = {key: value for key, value in spec.items() if key not in NOT_OF_THE_WORK}
    return Witness(
        job_id=job_id,
        cpus=frozenset(cpus[: len(cpus) // int(spec.get("ranks", 1))]),
        ranks=int(spec.get("ranks", 1)),
        allowed=_allowed(job),
        fewest_cpus=_extreme(min, counted, "n_cpus"),
        spans=spans,
        threads=spec.get("threads"),
        work=json.dumps([robot_hash, work], sort_keys=True) if work else "",
        env_steps=(ended or 0.0) - (begun or 0.0),
        wall_s=sums["wall_s"] or 0.0,
        cpu_s=sums["cpu_s"],
        run_delay_s=sums["run_delay_s"],
        throttled_s=sums["throttled_s"],
        n_threads=_extreme(max, counted, "n_threads"),
    )


def _allowed(job: JobPaths) -> frozenset[int] | None:
    """From the log of the last attempt that came so far."""
    try:
        numbers = sorted((int(path.name) for path in job.attempts.iterdir() if path.name.isdecimal()), reverse=True)
    except OSError:
        return None
    for number in numbers:
        try:
            with job.attempt(number).worker_log.open("rb") as file:
                found = _ON_CPU.search(file.read(LOG_HEAD).decode(errors="replace"))
        except OSError:
            continue
        if found is not None:
            return frozenset(int(part) for part in found[1].split(",") if part.strip())
    return None


def _rows(path: Path) -> list[dict[str, float | None]]:
    """The whole rows of a ``timings.csv``, those columns that are needed here."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    lines = csv.reader(text[: text.rfind("\n") + 1].replace("\0", "").splitlines())
    header = next(lines, [])
    wanted = {name: header.index(name) for name in (*SUMS, "env_steps", "n_threads", "n_cpus") if name in header}
    return [
        {name: _number(line[place]) for name, place in wanted.items()} for line in lines if len(line) == len(header)
    ]


def _total(rows: Sequence[Mapping[str, float | None]], name: str) -> float | None:
    """None without rows, or where a cell is empty."""
    values = [row.get(name) for row in rows]
    return None if not values or None in values else math.fsum(value or 0.0 for value in values)


def _extreme(choose: Any, rows: Sequence[Mapping[str, float | None]], name: str) -> int | None:
    values = [value for row in rows if (value := row.get(name)) is not None]
    return int(choose(values)) if values else None


def _last_session(path: Path) -> Mapping[str, Any]:
    found = _json(path)
    last = found[-1] if isinstance(found, list) and found else None
    return last if isinstance(last, Mapping) else {}


def _online(facts: Mapping[str, Any]) -> int | None:
    """As recorded; else of this machine, if it was this one."""
    recorded = facts.get("online_cpus")
    if isinstance(recorded, int):
        return recorded
    return len(topology.online_cpus()) or None if facts.get("host") == socket.gethostname() else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
