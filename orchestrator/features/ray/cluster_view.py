"""What ``cluster status`` shows: a table of nodes, and below it their jobs and warnings."""

from __future__ import annotations

from rich.text import Text

from orchestrator.core.columns import NONE, Column, number_column
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.core.text import count, listed, number_or_dash
from orchestrator.features.ray.cluster.cluster_status import (
    ClusterNode,
    ClusterStatus,
    version_lines,
)
from orchestrator.terminal.output import show_table

JOBS_SHOWN = 8


def show(status: ClusterStatus) -> None:
    nodes = status.nodes
    used = sum(node.cores_used for node in nodes)
    cores = sum(node.cores for node in nodes)
    gpus = sum(node.gpus for node in nodes)
    jobs = count(sum(len(node.jobs) for node in nodes), "job")
    parts = [count(len(nodes), "node"), f"{used:g} of {count(cores, 'core')} used"]
    if gpus:
        parts.append(f"{sum(node.gpus_used for node in nodes):g} of {count(gpus, 'GPU')} used")
    parts += [f"{jobs} of this program", f"Ray {status.ray}"]
    heading = f"{status.cluster}: {', '.join(parts)}"
    lines = [
        Text(f"{node.name}: {listed([job.job_id for job in node.jobs], JOBS_SHOWN)}")
        for node in nodes
        if node.jobs
    ]
    lines += [Text(line, style="bold yellow") for line in status.hot_spots]
    lines += [Text(line, style="dim") for line in version_lines(nodes)]
    show_table(_columns(status), nodes, above=[Text(heading)], below=lines)


def _columns(status: ClusterStatus) -> list[Column[ClusterNode]]:
    columns: list[Column[ClusterNode]] = [
        Column("node", lambda node: f"{node.name} (head)" if node.is_head else node.name),
        Column("address", lambda node: node.address, rank=1),
        number_column("cores", lambda node: f"{node.cores_used:g}/{node.cores}"),
        number_column("MiB", lambda node: f"{node.memory_used_mib:,}/{node.memory_mib:,}", rank=2),
    ]
    if any(node.gpus for node in status.nodes):
        columns.append(number_column("GPUs", _gpus, rank=1))
    wait = number_column(
        "wait", lambda node: number_or_dash(node.run_delay_share, ".0%"), rank=1, style=_wait_style
    )
    return [*columns, number_column("jobs", lambda node: str(len(node.jobs))), wait]


def _gpus(node: ClusterNode) -> str:
    return f"{node.gpus_used:g}/{node.gpus}" if node.gpus else NONE


def _wait_style(node: ClusterNode) -> str:
    return "bold red" if (node.run_delay_share or 0.0) > HIGH_RUN_DELAY_SHARE else ""
