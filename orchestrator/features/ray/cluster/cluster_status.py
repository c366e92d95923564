"""``cluster status``: what a cluster has, what runs on it, and where it is slow."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.messages import HIGH_RUN_DELAY_SHARE
from orchestrator.core.text import listed
from orchestrator.features.ray.cluster import address, cluster_token, node_state, query
from orchestrator.machine.topology import MIB

SHOWN = 5
LOW_SPEED_RATIO = 0.8
"""Speed of jobs, relative to those of the same work on other nodes, below which a node is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    key: str
    """``job_id/attempt``; ``job_id/attempt/rank`` for ranks on another node than rank 0."""
    job_id: str
    work: str
    """Equal for jobs that differ in their seed alone, so that their speeds are comparable."""
    cpus: tuple[int, ...] = ()
    """Of its ranks on this node."""
    cores: int
    """Of all its ranks, those on other nodes among them."""
    env_steps_per_s: float | None = None
    """Of all its ranks; known where its rank 0 is."""
    run_delay_share: float | None = None

    @property
    def speed_per_core(self) -> float | None:
        return None if self.env_steps_per_s is None else self.env_steps_per_s / self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A live node. Resources as Ray counts them: used ones are allocated, by this program or
    others.
    """

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
    """None for a node that timed out reporting its versions."""
    jobs: tuple[RunningJob, ...] = ()

    @property
    def run_delay_share(self) -> float | None:
        """The median share of time that its jobs wait for a CPU."""
        shares = [job.run_delay_share for job in self.jobs if job.run_delay_share is not None]
        return statistics.median(shares) if shares else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    cluster: str
    ray: str
    nodes: tuple[ClusterNode, ...]
    hot_spots: tuple[str, ...] = ()


def status(where: str | None = None) -> ClusterStatus:
    """Status of the cluster at ``where`` (``HOST:PORT``); None:
    :func:`~orchestrator.features.ray.cluster.node_state.usual_cluster`.

    :raises UsageError: there is no such cluster, what makes this machine a node of it has ended, or
        there is no valid token here.
    :raises OrchestratorError: the cluster does not answer.
    """
    cluster_token.require_ray()
    cluster = (
        address.host_port(*address.parse(where, address.DEFAULT_PORT))
        if where
        else node_state.usual_cluster()
    )
    node_state.refuse_broken(cluster)
    if not cluster:
        hint = "`cluster up` starts one, `cluster join HOST:PORT` joins one, --address HOST:PORT shows another one"
        raise UsageError(f"this machine is not a node of a cluster: {hint}")
    return from_facts(query.facts(cluster))


def from_facts(facts: Mapping[str, Any]) -> ClusterStatus:
    """From the report of :mod:`orchestrator.features.ray.cluster.query_child`."""
    hosts = [row["host"] for row in facts["nodes"]]
    cores = Counter[tuple[str, str]]()
    for row in facts["nodes"]:
        for job in row["jobs"]:
            cores[_attempt(job)] += len(job["cpus"])
    unsorted = (_node(row, cores, alone=hosts.count(row["host"]) == 1) for row in facts["nodes"])
    nodes = tuple(sorted(unsorted, key=lambda node: (not node.is_head, node.name)))
    return ClusterStatus(
        cluster=facts["cluster"], ray=facts["ray"], nodes=nodes, hot_spots=tuple(hot_spots(nodes))
    )


def _attempt(job: Mapping[str, Any]) -> tuple[str, str]:
    """Which attempt this is, or ranks of: its driver, and ``job_id/attempt``."""
    return job["home"], "/".join(job["key"].split("/")[:2])


def _node(
    row: Mapping[str, Any], cores_of_attempts: Mapping[tuple[str, str], int], *, alone: bool
) -> ClusterNode:
    """:param cores_of_attempts: by :func:`_attempt`; on all nodes."""
    total = row["total"]
    free = row["free"]

    def total_and_used(name: str, unit: int = 1) -> tuple[int, float]:
        amount = total.get(name, 0.0)
        return int(amount / unit), (amount - free.get(name, 0.0)) / unit

    cores, cores_used = total_and_used("CPU")
    memory_mib, memory_used_mib = total_and_used("memory", MIB)
    gpus, gpus_used = total_and_used("GPU")
    return ClusterNode(
        name=row["host"] if alone else f"{row['host']}/{row['node_id'][:6]}",
        address=row["address"],
        is_head=row["is_head"],
        cores=cores,
        cores_used=cores_used,
        memory_mib=memory_mib,
        memory_used_mib=round(memory_used_mib),
        gpus=gpus,
        gpus_used=gpus_used,
        versions=row["versions"],
        jobs=tuple(
            sorted(
                (_job(job, cores_of_attempts[_attempt(job)]) for job in row["jobs"]),
                key=lambda job: job.key,
            )
        ),
    )


def _job(row: Mapping[str, Any], cores: int) -> RunningJob:
    progress = row["progress"] or {}
    return RunningJob(
        key=row["key"],
        job_id=row["job_id"],
        work=row["work"],
        cpus=tuple(row["cpus"]),
        cores=max(1, cores),
        env_steps_per_s=progress.get("env_steps_per_s"),
        run_delay_share=progress.get("run_delay_share"),
    )


def hot_spots(nodes: Sequence[ClusterNode]) -> list[str]:
    """A sentence for each node whose jobs wait for CPUs, or are slower per core than the same jobs
    on other nodes.
    """
    lines = []
    for node in nodes:
        if (share := node.run_delay_share or 0.0) > HIGH_RUN_DELAY_SHARE:
            why = "another program uses their cores. Run `doctor` there to see which"
            if sharing := _jobs_sharing_cpus(node.jobs):
                names = listed(sharing, SHOWN)
                why = f"jobs of this program share CPUs ({names}): Ray counts more cores than there are"
            lines.append(f"{node.name}: its jobs wait {share:.0%} of the time for a CPU, as {why}")
    for index, ratio in _speed_ratios(nodes).items():
        if ratio < LOW_SPEED_RATIO:
            others = "that the same jobs have on other nodes"
            lines.append(
                f"{nodes[index].name}: its jobs run at {ratio:.0%} of the speed per core {others}"
            )
    return lines


def _jobs_sharing_cpus(jobs: Sequence[RunningJob]) -> list[str]:
    """The jobs, of any driver, that have a CPU in common with another one."""
    users = Counter(cpu for job in jobs for cpu in set(job.cpus))
    return [job.key for job in jobs if any(users[cpu] > 1 for cpu in job.cpus)]


def _speed_ratios(nodes: Sequence[ClusterNode]) -> dict[int, float]:
    """Index of a node → median speed of its jobs, relative to jobs of the same work on the other
    nodes.
    """
    speeds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for index, node in enumerate(nodes):
        for job in node.jobs:
            if job.speed_per_core:
                speeds[job.work][index].append(job.speed_per_core)
    ratios: dict[int, list[float]] = defaultdict(list)
    for by_node in speeds.values():
        for index, own in by_node.items():
            others = [
                speed for other, values in by_node.items() if other != index for speed in values
            ]
            if others:
                median = statistics.median(others)
                ratios[index] += [speed / median for speed in own]
    return {index: statistics.median(values) for index, values in sorted(ratios.items())}


def version_lines(nodes: Sequence[ClusterNode]) -> list[str]:
    """The versions that most nodes have, in one line; then one line for each node that differs."""
    reports = [node.versions for node in nodes if node.versions]
    names = list(dict.fromkeys(name for versions in reports for name in versions))
    usual = {name: statistics.mode([versions.get(name) for versions in reports]) for name in names}
    lines = []
    if reports:
        lines.append(
            "versions: "
            + ", ".join(f"{name} {version}" for name, version in usual.items() if version)
        )
    for node in nodes:
        if node.versions is None:
            lines.append(f"{node.name}: timed out reporting package versions")
            continue
        versions = {name: node.versions.get(name) for name in names}
        differing = [
            f"{name} {version or 'missing'}"
            for name, version in versions.items()
            if version != usual[name]
        ]
        if differing:
            lines.append(f"{node.name}: {', '.join(differing)}")
    return lines
