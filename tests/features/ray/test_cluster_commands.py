"""``cluster up``, ``join``, ``status`` and ``down`` on this machine, with real processes of Ray."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cluster_helpers as helpers
import grpc_probe
import pytest
from cluster_helpers import Machine, free_port
from command_helpers import REPOSITORY, wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

OTHER_TOKEN = "0123456789abcdef" * 4
ANY_METHOD = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Machine, Machine, str]]:
    """A head and a node, both on loopback, and the address of the head."""
    with helpers.machines((), ()) as (head, node):
        address = f"127.0.0.1:{free_port()}"
        output = head.done("up", "--address", "127.0.0.1", "--port", address.partition(":")[2])
        assert f"the head of a cluster runs at {address}" in output
        node.take_token_of(head)
        assert node.done("join", address).startswith(
            f"joined the cluster at {address} as 127.0.0.1: "
        )
        yield head, node, address


def listening(machine: Machine) -> set[str]:
    """Addresses at which the machine's processes of Ray listen."""
    assert machine.record is not None
    pids = helpers.processes_with(json.loads(machine.record.read_text())["mark"])
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if (target := str(link.readlink())).startswith("socket:"):
                inodes.add(target[8:-1])
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.add(fields[1].rpartition(":")[0])
    return addresses


def test_only_its_owner_can_read_the_token(both: tuple[Machine, Machine, str]) -> None:
    head, _, _ = both
    assert stat.S_IMODE(head.token.stat().st_mode) == 0o600
    assert len(head.token.read_text()) == 64


def test_on_loopback_nothing_listens_on_other_interfaces(
    both: tuple[Machine, Machine, str],
) -> None:
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    for machine in both[:2]:
        addresses = listening(machine)
        assert addresses
        assert addresses <= loopback


def test_status_shows_the_nodes_and_their_versions(both: tuple[Machine, Machine, str]) -> None:
    head, node, address = both
    output = head.done("status")
    assert output.startswith(f"{address}: 2 nodes, 0 of ")
    assert " (head) " in output
    assert "stable-baselines3 " in output
    facts = json.loads(node.done("status", "--json"))
    assert [row["is_head"] for row in facts["nodes"]] == [True, False]
    counted = "from orchestrator.machine.topology import detect; print(detect().capacity)"
    capacity = int(head.run([sys.executable, "-c", counted]).stdout)
    assert {row["cores"] for row in facts["nodes"]} == {capacity}

    def answers() -> bool:
        """Whether every node names its versions in time: on a busy machine one may be too slow."""
        rows = json.loads(node.done("status", "--json"))["nodes"]
        return all(row["versions"] and row["versions"]["torch"] for row in rows)

    wait_until(answers, "versions of both nodes")


def test_only_callers_with_the_token_are_answered(both: tuple[Machine, Machine, str]) -> None:
    head, _, address = both
    host, _, port = address.partition(":")
    assert grpc_probe.call(host, int(port), ANY_METHOD) == grpc_probe.UNAUTHENTICATED
    for token, status in ((OTHER_TOKEN, grpc_probe.UNAUTHENTICATED), (head.token.read_text(), "0")):
        assert (
            grpc_probe.call(host, int(port), ANY_METHOD, ("authorization", f"Bearer {token}"))
            == status
        )


def test_joining_requires_the_token(both: tuple[Machine, Machine, str]) -> None:
    head, _, address = both
    with helpers.machines(()) as (other,):
        assert f"{other.token}: there is no token. Copy the file" in other.refused("join", address)
        assert f"{address}: this cluster requires a token" in other.refused(
            "join", address, "--insecure"
        )
        other.take_token_of(head)
        other.token.write_text(OTHER_TOKEN)
        assert f"{address}: this cluster has another token than {other.token}" in other.refused(
            "join", address
        )
        assert "the environment's RAY_AUTH_TOKEN;" in other.refused(
            "join", address, RAY_AUTH_TOKEN=OTHER_TOKEN
        )
        assert "has another token than" in other.refused("status", "--address", address)
        assert other.record is None


def run_refused(machine: Machine, address: str, **added: str) -> str:
    """The error message of a run that cannot use the cluster at ``address``."""
    jobs, over = (
        str(REPOSITORY / "jobs/smoke.toml"),
        ("--executor", "ray", "--ray-address", address),
    )
    done = machine.run([sys.executable, "-m", "orchestrator", "run", jobs, *over], **added)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, f"one message of one line: {done.stderr}"
    return done.stderr


@pytest.fixture(scope="module")
def without_token() -> Iterator[tuple[Machine, Machine, str]]:
    """A head without authentication, a machine that is no node yet and has a token, and the address
    of the head."""
    with helpers.machines((), ()) as (head, node):
        address = f"127.0.0.1:{free_port()}"
        output = head.done(
            "up", "--address", "127.0.0.1", "--port", address.partition(":")[2], "--insecure"
        )
        assert "WARNING: no authentication" in output
        assert not head.token.exists()
        node.token.parent.mkdir(parents=True)
        node.token.write_text(OTHER_TOKEN)
        node.token.chmod(0o600)
        yield head, node, address


def test_a_cluster_without_token_needs_the_option_insecure(
    without_token: tuple[Machine, Machine, str],
) -> None:
    """Another node joins with it."""
    _, node, address = without_token
    assert grpc_probe.call("127.0.0.1", int(address.partition(":")[2]), ANY_METHOD) == "0", (
        "it answers everyone"
    )
    for message in (node.refused("join", address), run_refused(node, address)):
        assert f"{address}: this cluster has no authentication" in message


def test_down_ends_only_its_own_node(both: tuple[Machine, Machine, str]) -> None:
    """The last test with ``both``: its node has left then."""
    head, node, address = both
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        assert node.record is not None
        mark = json.loads(node.record.read_text())["mark"]
        assert "raylet" in helpers.processes_with(mark).values()
        output = node.done("down")
        assert output.startswith(f"ended 127.0.0.1, a node of the cluster at {address}: raylet")
        assert not helpers.processes_with(mark)
        assert node.record is None
        assert not list(node.temporary.glob("orchestrator-*/ray-*"))
        assert bystander.poll() is None
        assert head.done("status").startswith(f"{address}: 1 node, ")
    finally:
        bystander.kill()
        bystander.wait()
