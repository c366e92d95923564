"""``cluster status``: what a cluster has, what runs on it, and where it is slow."""

from __future__ import annotations

import dataclasses
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.executors.ray.cluster import address, cluster_token, node_state, query

MIB = 1 << 20
WAITING = 0.15
"""Of its wall time that a job waits for a CPU: somebody else has it. Alone on a core it is below a hundredth."""
SLOW = 0.8
"""Of the speed that jobs of the same name have on the other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """An attempt on a node, as the node's keeper knows it."""

    key: str
    """``job_id/attempt``, of a rank elsewhere than the first with its number behind."""
    cores: int
    env_steps_per_s: float | None = None
    run_delay_share: float | None = None
    """As in :class:`orchestrator.core.messages.Progress`."""

    @property
    def job_id(self) -> str:
        return self.key.partition("/")[0]

    @property
    def kind(self) -> str:
        """What its speed may be compared with: all seeds of a job are alike."""
        return re.sub(r"-s\d+", "", self.job_id)

    @property
    def speed_per_core(self) -> float | None:
        return None if self.env_steps_per_s is None else self.env_steps_per_s / self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node that lives. Resources as Ray counts them: ``used`` is what it has promised to somebody."""

    name: str
    address: str
    is_head: bool
    cores: int
    cores_used: float
    memory_mib: int
    memory_used_mib: int
    gpus: int
    gpus_used: float
    versions: Mapping[str, str | None] | None = None
    """None: the node has not answered in time."""
    jobs: tuple[RunningJob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    cluster: str
    ray: str
    nodes: tuple[ClusterNode, ...]
    hot_spots: tuple[str, ...] = field(default=())
    """In sentences."""

    def facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def status(where: str | None = None) -> ClusterStatus:
    """Of the cluster at ``where`` (``HOST:PORT``), or the one that this machine is a node of.

    :raises UsageError: this machine is in no cluster, or has not the right token.
    :raises OrchestratorError: the cluster does not answer.
    """
    cluster_token.require_ray()
    named = where or node_state.cluster_here() or os.environ.get("RAY_ADDRESS")
    if not named:
        raise UsageError(
            "this machine is no node of a cluster: `cluster up` starts one, `cluster join HOST:PORT` joins one; or say "
            "which, with --address HOST:PORT"
        )
    return from_facts(query.facts(address.joined(*address.parse(named, address.DEFAULT_PORT))))


def from_facts(facts: Mapping[str, Any]) -> ClusterStatus:
    """From what :mod:`orchestrator.executors.ray.cluster.query_child` has found."""
    hosts = [row["host"] for row in facts["nodes"]]
    nodes = tuple(_node(row, alone=hosts.count(row["host"]) == 1) for row in facts["nodes"])
    nodes = tuple(sorted(nodes, key=lambda node: (not node.is_head, node.name)))
    return ClusterStatus(cluster=facts["cluster"], ray=facts["ray"], nodes=nodes, hot_spots=tuple(hot_spots(nodes)))


def _node(row: Mapping[str, Any], *, alone: bool) -> ClusterNode:
    total, free = row["total"], row["free"]

    def both(name: str, unit: int = 1) -> tuple[int, float]:
        there = total.get(name, 0.0)
        return int(there / unit), (there - free.get(name, 0.0)) / unit

    (cores, cores_used), (memory, memory_used), (gpus, gpus_used) = both("CPU"), both("memory", MIB), both("GPU")
    return ClusterNode(
        name=row["host"] if alone else f"{row['host']}/{row['node_id'][:6]}",
        address=row["address"],
        is_head=row["is_head"],
        cores=cores,
        cores_used=cores_used,
        memory_mib=memory,
        memory_used_mib=round(memory_used),
        gpus=gpus,
        gpus_used=gpus_used,
        versions=row["versions"],
        jobs=tuple(sorted(map(_job, row["jobs"]), key=lambda job: job.key)),
    )


def _job(row: Mapping[str, Any]) -> RunningJob:
    said = row["progress"] or {}
    return RunningJob(
        key=row["key"],
        cores=max(1, len(row["cpus"])),
        env_steps_per_s=said.get("env_steps_per_s"),
        run_delay_share=said.get("run_delay_share"),
    )


def hot_spots(nodes: Sequence[ClusterNode]) -> list[str]:
    """Nodes whose jobs wait for a CPU, or run slower for each core than the same jobs elsewhere; a sentence each."""
    lines = []
    for node in nodes:
        shares = [job.run_delay_share for job in node.jobs if job.run_delay_share is not None]
        if shares and (waited := statistics.median(shares)) > WAITING:
            lines.append(
                f"{node.name}: its jobs wait {waited:.0%} of the time for a CPU; something else has their cores: "
                "`doctor` there tells what"
            )
    for place, ratio in _ratios(nodes).items():
        if ratio < SLOW:
            name = nodes[place].name
            lines.append(f"{name}: its jobs run at {ratio:.0%} of the speed per core that the same jobs have elsewhere")
    return lines


def _ratios(nodes: Sequence[ClusterNode]) -> dict[int, float]:
    """Node, by its place in ``nodes`` → its speed, as part of what jobs of the same kind have on the other nodes."""
    speeds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, node in enumerate(nodes):
        for job in node.jobs:
            if job.speed_per_core:
                speeds[job.kind][place].append(job.speed_per_core)
    ratios: dict[int, list[float]] = defaultdict(list)
    for of_node in speeds.values():
        for place, mine in of_node.items():
            others = [speed for other, found in of_node.items() if other != place for speed in found]
            if others:
                elsewhere = statistics.median(others)
                ratios[place] += [speed / elsewhere for speed in mine]
    return {place: statistics.median(found) for place, found in sorted(ratios.items())}


def version_lines(nodes: Sequence[ClusterNode]) -> list[str]:
    """What most nodes have, in one line; then, for each node that differs, in what."""
    known = [node for node in nodes if node.versions]
    names = list(dict.fromkeys(name for node in known for name in node.versions or ()))
    usual = {name: statistics.mode([(node.versions or {}).get(name) for node in known]) for name in names}
    lines = (
        ["versions: " + ", ".join(f"{name} {version}" for name, version in usual.items() if version)] if known else []
    )
    for node in nodes:
        if node.versions is None:
            lines.append(f"{node.name}: has not told its versions in time")
            continue
        apart = [
            f"{name} {node.versions.get(name) or 'missing'}" for name in names if node.versions.get(name) != usual[name]
        ]
        if apart:
            lines.append(f"{node.name}: {', '.join(apart)}")
    return lines
