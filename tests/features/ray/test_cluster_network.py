"""A cluster of three simulated machines, and an attacker on the same network."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cluster_helpers as helpers
import grpc_probe
import pytest
from cluster_helpers import PATIENCE_S, Machine
from command_helpers import HOPPER, summary, wait_until, write_experiment
from network_helpers import Network, network
from ray_helpers import STUBBED
from run_helpers import LONG, SHORT

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import RunPaths
from orchestrator.machine import topology
from orchestrator.machine.process_identity import process_start, same_process

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
HEAD = f"{ADDRESSES[0]}:6379"
NODE2 = 2
"""Index in the network."""
OVER = ("--executor", "ray", "--ray-address", HEAD, "--storage", "stream")
DRIVER = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # for what Ray prints of its nodes
from orchestrator.features.ray.cluster import cluster_token
os.environ.update(cluster_token.client_environment(sys.argv[1]))
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(address=sys.argv[1], log_to_driver=False)

@ray.remote(num_cpus=0)
class Idle:
    def answer(self):
        return ray.get_runtime_context().get_node_id()

def nodes():
    return sorted(row["NodeID"] for row in ray.nodes() if row["Alive"])

first = nodes()
places = [NodeAffinitySchedulingStrategy(node, soft=False) for node in first]
actors = [Idle.options(scheduling_strategy=place).remote() for place in places]
assert ray.get([actor.answer.remote() for actor in actors]) == first
print(json.dumps(first), file=answers, flush=True)
for line in sys.stdin:
    if line.strip() == "actors":
        assert ray.get([actor.answer.remote() for actor in actors]) == first
    print(json.dumps(nodes()), file=answers, flush=True)
"""
"""A driver with an actor on every node. For each line of its input it prints the ids of the
cluster's nodes; for the line ``actors`` all of these answer before."""


@dataclass(frozen=True)
class Site:
    network: Network
    head: Machine
    nodes: tuple[Machine, Machine]
    attacker: Machine

    @property
    def mine(self) -> tuple[Machine, ...]:
        return self.head, *self.nodes


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with network(*ADDRESSES, "10.0.0.66") as made:
        names = ("head", "node1", "node2", "attacker")
        with helpers.machines(
            *(made.within(number, name) for number, name in enumerate(names))
        ) as machines:
            head, *nodes, attacker = machines
            assert f"the head of a cluster runs at {HEAD}" in head.done("up")
            for node, address in zip(nodes, ADDRESSES[1:], strict=True):
                node.take_token_of(head)
                assert node.done("join", HEAD).startswith(
                    f"joined the cluster at {HEAD} as {address}: "
                )
            yield Site(made, head, (nodes[0], nodes[1]), attacker)


@pytest.fixture(scope="module")
def driver(site: Site) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        site.head.command("-c", DRIVER, HEAD),
        env=site.head.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert len(json.loads(process.stdout.readline())) == 3
        yield process
    finally:
        process.kill()
        process.communicate()


def ids(driver: subprocess.Popen[str], question: str = "nodes") -> list[str]:
    """Of the cluster's nodes."""
    assert driver.stdin is not None
    assert driver.stdout is not None
    print(question, file=driver.stdin, flush=True)
    answer: list[str] = json.loads(driver.stdout.readline())
    return answer


def hashes(run_dir: Path) -> Mapping[str, str | None]:
    paths = RunPaths(run_dir)
    records = {
        folder.name: ExitRecord.from_json(paths.job(folder.name).attempt(0).exit.read_text())
        for folder in paths.jobs.iterdir()
    }
    return {job_id: record.weights_sha256 for job_id, record in records.items()}


def test_jobs_on_three_machines_have_the_same_weights_as_on_one(site: Site) -> None:
    jobs = write_experiment(
        site.head.home,
        {**SHORT, "seeds": [0, 1], "normalize": True},
        {"name": "hopper", "xml": HOPPER, "normalize": True},
    )
    command = [sys.executable, "-m", "orchestrator", "run", str(jobs)]
    done = site.head.run([*command, "--run-dir", "far", *OVER, "--json"])
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    nodes = {event["node"] for event in events if event.get("node")}
    assert nodes == {"head", "node1", "node2"}
    done = site.head.run([*command, "--run-dir", "near"])
    assert done.returncode == 0, done.stdout + done.stderr
    near = hashes(site.head.home / "near")
    assert len(near) == 3
    assert None not in near.values()
    assert hashes(site.head.home / "far") == near


def test_an_attacker_finds_no_port_that_runs_code(
    site: Site, driver: subprocess.Popen[str]
) -> None:
    before = ids(driver)
    done = site.attacker.run([sys.executable, grpc_probe.__file__, *ADDRESSES])
    assert done.returncode == 0, done.stderr
    scan = json.loads(done.stdout)
    for address in ADDRESSES:
        ports = scan[address]
        # Raylet, its object manager, its agent and an actor's process; on the head Ray's control
        # service too.
        assert len(ports) >= 4 + (address == ADDRESSES[0])
        for port, answers in ports.items():
            where = f"{address}:{port}"
            if answers["http"] is not None:
                assert answers["http"] == 401, where
                continue
            statuses = set(answers["grpc"].values()) - {grpc_probe.UNIMPLEMENTED}
            assert statuses, f"{where}: neither Ray's gRPC nor HTTP; what is it?"
            assert statuses == {grpc_probe.UNAUTHENTICATED}, f"{where}: {answers['grpc']}"
    assert ids(driver, "actors") == before, "all actors still answer"


def too_wide_for_a_node(
    site: Site, folder: str, job: Mapping[str, object], **changes: object
) -> Path:
    """A job file of ``job`` with two ranks, each of which takes a whole node."""
    resources = {"ranks": 2, "cores": topology.detect().capacity, "threads": 1, "memory": "1 GiB"}
    return write_experiment(
        site.head.home / folder, {**job, "name": folder, "resources": resources, **changes}
    )


def until_ranks_exchange(job: str) -> list[int]:
    """Pids of the two ranks of ``job``, once both have started gloo."""

    def threads(pid: int) -> set[str]:
        return {name.read_text().strip() for name in Path(f"/proc/{pid}/task").glob("*/comm")}

    def found() -> list[int]:
        try:
            return [
                pid
                for pid in helpers.processes_with(f"/{job}-s0/0")
                if "gloo_tcp_loop" in threads(pid)
            ]
        except OSError:  # a process or thread has ended
            return []

    wait_until(lambda: len(found()) == 2, f"the ranks of {job}, both with gloo", PATIENCE_S)
    return found()


def test_ranks_on_two_machines_have_the_same_weights_as_on_one(site: Site) -> None:
    job = {**SHORT, "total_timesteps": 20_480, "checkpoint_every": 10_240}
    # Two network namespaces are one machine to ranks: they could share memory.
    jobs = too_wide_for_a_node(site, "wide", job, distributed={"backend": "gloo"})
    with site.head.running(jobs, *OVER, "--run-dir", "wide/far") as process:
        for pid in until_ranks_exchange("wide"):
            assert "memfd:ranks" not in Path(f"/proc/{pid}/maps").read_text(), (
                "they share no memory"
            )
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out
    launched = next(
        event for event in map(json.loads, out.splitlines()) if event["event"] == "launched"
    )
    assert launched["node"].count(", ") == 1
    alone = too_wide_for_a_node(
        site, "near", job, name="wide", resources={"ranks": 2, "cores": 1, "threads": 1}
    )
    done = site.head.run(
        [sys.executable, "-m", "orchestrator", "run", str(alone), "--run-dir", "wide/near"]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    near = hashes(site.head.home / "wide/near")
    assert None not in near.values()
    assert hashes(site.head.home / "wide/far") == near
    paths = RunPaths(site.head.home / "wide/far").job("wide-s0")
    received = {path.name for path in paths.attempt(0).root.iterdir()}
    assert received >= {"worker.log", "rank-1.log", "exit.json", "rank-1.exit.json"}
    assert paths.model.exists()


def test_a_node_that_is_cut_off_ends_its_jobs_before_they_continue_elsewhere(
    site: Site, driver: subprocess.Popen[str]
) -> None:
    """All nodes see the same files, which two workers of one job would both write. Removes node2
    from the cluster.

    ``test_ray_faults.py`` shows that such jobs resume from their last checkpoints.
    """
    jobs = write_experiment(site.head.home / "cut", {**LONG, "seeds": [0, 1, 2]})
    run_dir = site.head.home / "cut/run"
    over = ("--executor", "ray", "--ray-address", HEAD, "--storage", "shared", "--run-dir", run_dir)
    with site.head.running(jobs, *over, typed=("-c", STUBBED)) as process:
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        launched = (
            event for event in events if event["event"] == "launched"
        )  # a slow node may be told of between
        first = {event["node"]: event for event in itertools.islice(launched, 3)}
        cut_off = first["node2"]
        started = process_start(cut_off["pid"])
        assert started is not None
        wait_until((run_dir / "jobs" / cut_off["job_id"] / "started").exists, "its worker to start")
        with site.network.stalled(NODE2):
            again = next(launched)  # Ray's tasks end minutes later
            assert not same_process(cut_off["pid"], started), "the node has killed it"
        assert again["job_id"] == cut_off["job_id"]
        assert again["node"] in ("head", "node1")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    rows = summary(run_dir)
    assert rows[cut_off["job_id"]]["attempts"] == 2
    assert [row["attempts"] for row in rows.values()].count(1) == 2
    wait_until(lambda: len(ids(driver)) == 2, "the cluster without the node", PATIENCE_S)
    site.nodes[1].done("down")
