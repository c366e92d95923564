"""What ``cluster status`` prints for people: a table of nodes, and below it what is to be said of them."""

from __future__ import annotations

import statistics

from rich.text import Text

from orchestrator.core.text import count, listed
from orchestrator.executors.ray.cluster.cluster_status import WAITING, ClusterNode, ClusterStatus, version_lines
from orchestrator.terminal import tables, views
from orchestrator.terminal.tables import Column

NONE = "–"
JOBS_SHOWN = 8


def show(status: ClusterStatus) -> None:
    on = views.console()
    views.show(on, Text(_heading(status)), tables.table(_columns(status), on.width), *_lines(status))


def _heading(status: ClusterStatus) -> str:
    nodes = status.nodes
    used, cores = sum(node.cores_used for node in nodes), sum(node.cores for node in nodes)
    gpus = sum(node.gpus for node in nodes)
    jobs = sum(len(node.jobs) for node in nodes)
    parts = [count(len(nodes), "node"), f"{used:g} of {count(cores, 'core')} used", f"{count(jobs, 'job')} of ours"]
    if gpus:
        parts.insert(2, f"{sum(node.gpus_used for node in nodes):g} of {count(gpus, 'GPU')}")
    return f"{status.cluster}: {', '.join(parts)}, Ray {status.ray}"


def _columns(status: ClusterStatus) -> list[Column]:
    nodes = status.nodes
    waits = [_waits(node) for node in nodes]
    gpus = [f"{node.gpus_used:g}/{node.gpus}" if node.gpus else NONE for node in nodes]
    return [
        Column(name="node", cells=[f"{node.name} (head)" if node.is_head else node.name for node in nodes]),
        Column(name="address", cells=[node.address for node in nodes], rank=1),
        Column(name="cores", cells=[f"{node.cores_used:g}/{node.cores}" for node in nodes], justify="right"),
        Column(
            name="MiB",
            cells=[f"{node.memory_used_mib:,}/{node.memory_mib:,}" for node in nodes],
            justify="right",
            rank=2,
        ),
        *([Column(name="GPUs", cells=gpus, justify="right", rank=1)] if any(node.gpus for node in nodes) else []),
        Column(name="jobs", cells=[str(len(node.jobs)) for node in nodes], justify="right"),
        Column(
            name="wait",
            cells=[NONE if wait is None else f"{wait:.0%}" for wait in waits],
            justify="right",
            rank=1,
            styles=["bold red" if wait is not None and wait > WAITING else "" for wait in waits],
        ),
    ]


def _waits(node: ClusterNode) -> float | None:
    shares = [job.run_delay_share for job in node.jobs if job.run_delay_share is not None]
    return statistics.median(shares) if shares else None


def _lines(status: ClusterStatus) -> list[Text]:
    lines = [
        Text(f"{node.name}: {listed([job.job_id for job in node.jobs], JOBS_SHOWN)}")
        for node in status.nodes
        if node.jobs
    ]
    lines += [Text(line, style="bold yellow") for line in status.hot_spots]
    return lines + [Text(line, style="dim") for line in version_lines(status.nodes)]
