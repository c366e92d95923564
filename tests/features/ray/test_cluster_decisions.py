"""The decisions of the cluster commands, without Ray: tokens, addresses, offers, hot spots."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import cluster_home  # noqa: F401 - a fixture

from orchestrator.core.errors import UsageError
from orchestrator.features.ray.cluster import (
    address,
    cluster_token,
    query,
)
from orchestrator.features.ray.cluster.cluster_status import (
    ClusterNode,
    RunningJob,
    from_facts,
    hot_spots,
)
from orchestrator.features.ray.cluster.query import HeadVersions
from orchestrator.machine.topology import Cpu, Machine

TOKEN = "0123456789abcdef" * 4


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


# -- the token


def test_a_token_is_created_once_and_readable_by_its_owner_only(home: Path, no_umask: None) -> None:
    path = cluster_token.create_token()
    assert path == home / ".config/orchestrator/cluster-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    made = path.read_text()
    assert len(made) == 64
    assert cluster_token.create_token().read_text() == made
    cluster_token.check_token()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_that_others_can_read_or_write_is_refused(mode: int) -> None:
    path = cluster_token.create_token()
    path.chmod(mode)
    with pytest.raises(
        UsageError, match=f"others can read or replace this token .*mode is 0{mode:o}"
    ):
        cluster_token.check_token()


def test_the_environment_names_the_token_or_turns_authentication_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="there is no token"):
        cluster_token.environment()
    assert cluster_token.environment(insecure=True)[cluster_token.MODE_VARIABLE] == "disabled"
    assert (
        cluster_token.client_environment("10.0.0.1:6379")[cluster_token.MODE_VARIABLE] == "disabled"
    )
    path = cluster_token.create_token()
    variables = cluster_token.client_environment("10.0.0.1:6379")
    assert (
        variables[cluster_token.MODE_VARIABLE],
        variables[cluster_token.TOKEN_FILE_VARIABLE],
    ) == (
        "token",
        str(path),
    )
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in variables
    assert (
        cluster_token.client_environment("127.0.0.1:6379")["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
        == "0"
    )
    monkeypatch.setenv(cluster_token.TOKEN_VARIABLE, TOKEN)
    assert cluster_token.TOKEN_FILE_VARIABLE not in cluster_token.environment()


@pytest.mark.parametrize(
    ("version", "fits"), [("2.54.0", False), ("2.55.0", True), ("2.60.0", True), ("3.0.0", False)]
)
def test_which_versions_of_ray_are_accepted(
    version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if fits:
        assert cluster_token.require_ray() == version
    else:
        with pytest.raises(
            UsageError, match=r"Ray .* expected 2\.55 or later, below 3: pip install .*\[ray\]"
        ):
            cluster_token.require_ray()


# -- versions of the head

HERE = HeadVersions(ray="2.60.0", python=".".join(map(str, sys.version_info[:3])))


@pytest.mark.parametrize(
    ("head", "fits"),
    [
        (HERE, True),
        (
            HeadVersions(ray=HERE.ray, python=f"{sys.version_info[0]}.{sys.version_info[1]}.99"),
            True,
        ),
        (HeadVersions(ray="2.60.1", python=HERE.python), False),
        (HeadVersions(ray=HERE.ray, python="3.9.1"), False),
    ],
)
def test_a_head_with_another_ray_or_python_is_refused(
    head: HeadVersions, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {True: query.TokenRefused(), False: head}
    monkeypatch.setattr(query, "head_versions", lambda cluster, insecure: answers[insecure])
    monkeypatch.setattr(cluster_token, "require_ray", lambda: HERE.ray)
    difference = (
        f"its head has Ray {head.ray} on Python {head.python}, this "
        f"machine Ray {HERE.ray} on Python {HERE.python}"
    )
    with (
        contextlib.nullcontext() if fits else pytest.raises(UsageError, match=re.escape(difference))
    ):
        query.check("10.0.0.1:6379", insecure=False)


# -- addresses


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1:6379", ("10.0.0.1", 6379)),
        ("10.0.0.1", ("10.0.0.1", 99)),
        ("localhost:1", ("127.0.0.1", 1)),
        ("[::1]:6379", ("::1", 6379)),
        ("[::1]", ("::1", 99)),
        ("::1", ("::1", 99)),
    ],
)
def test_addresses_are_understood(text: str, found: tuple[str, int]) -> None:
    assert address.parse(text, 99) == found
    assert address.parse(address.host_port(*found)) == found


def test_an_address_must_be_of_this_machine_and_free() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(UsageError, match="another program listens there; give another --port"):
            address.check_own("127.0.0.1", port)
        assert address.connect_error("127.0.0.1", port) is None
    assert address.connect_error("127.0.0.1", port) == "Connection refused"
    address.check_own("127.0.0.1", port)
    with pytest.raises(UsageError, match=r"203\.0\.113\.7 is not an address of this machine"):
        address.check_own("203.0.113.7")
    assert address.own("127.0.0.1") == "127.0.0.1"


# -- the offer of a machine


def machine(
    cores: int = 8, siblings: int = 2, quota: float | None = None, memory_mib: int = 64_000
) -> Machine:
    cpus = [
        Cpu(index=index, core=index % cores, package=0, numa_node=0)
        for index in range(cores * siblings)
    ]
    return Machine(cpus=tuple(cpus), quota=quota, memory_total_mib=memory_mib)


# -- hot spots


def job(
    key: str,
    speed: float | None = None,
    waits: float | None = None,
    cores: int = 1,
    cpus: tuple[int, ...] = (),
) -> RunningJob:
    job_id = key.partition("/")[0]
    work = job_id.partition("-")[0]
    return RunningJob(
        key=key,
        job_id=job_id,
        work=work,
        cores=cores,
        cpus=cpus,
        env_steps_per_s=speed,
        run_delay_share=waits,
    )


def member(
    name: str, *jobs: RunningJob, versions: dict[str, str | None] | None = None
) -> ClusterNode:
    return ClusterNode(
        name=name,
        address="10.0.0.1",
        is_head=False,
        cores=4,
        cores_used=len(jobs),
        memory_mib=1000,
        memory_used_mib=0,
        gpus=0,
        gpus_used=0,
        versions=versions,
        jobs=jobs,
    )


def test_a_node_whose_jobs_wait_is_a_hot_spot() -> None:
    calm = member(
        "calm", job("a-s0/0", 100, 0.01), job("a-s1/0", 100, 0.02), job("a-s2/0", 100, 0.9)
    )
    busy = member("busy", job("a-s3/0", 100, 0.4), job("a-s4/0", 100, 0.2))
    (line,) = hot_spots([calm, busy])
    assert line.startswith("busy: its jobs wait 30% of the time for a CPU")


def test_a_node_that_is_slower_per_core_is_a_hot_spot() -> None:
    fast = member("fast", job("a-s0/0", 100), job("b-s0/0", 10))
    also = member("also", job("a-s1/0", 200, cores=2), job("a-s2/0", 98))
    slow = member("slow", job("a-s3/1", 50), job("b-s1/0", 5))
    (line,) = hot_spots([fast, also, slow])
    assert line.startswith("slow: its jobs run at 50% of the speed per core")


def test_status_from_the_report_of_the_cluster() -> None:
    progress, names = (
        {"env_steps_per_s": 100.0, "run_delay_share": 0.5},
        {"key": "a-s0/0", "job_id": "a-s0", "work": "a"},
    )
    rows = [
        {
            "node_id": number * 8,
            "address": f"10.0.0.{number}",
            "host": host,
            "is_head": number == "2",
            "total": {"CPU": 4.0, "memory": 8.0 * 2**30, "GPU": 2.0},
            "free": {"CPU": 3.0, "memory": 6.0 * 2**30},
            "versions": {},
            "jobs": [
                {
                    **names,
                    "home": f"driver {number}",
                    "cpus": [0, 1],
                    "progress": progress if number == "1" else None,
                }
            ],
        }
        for number, host in (("1", "same"), ("2", "same"), ("3", "other"))
    ]
    found = from_facts({"cluster": "10.0.0.2:6379", "ray": "2.60.0", "nodes": rows})
    assert [member.name for member in found.nodes] == ["same/222222", "other", "same/111111"]
    last = found.nodes[2]
    assert (last.cores, last.cores_used, last.memory_mib, last.memory_used_mib) == (
        4,
        1.0,
        8192,
        2048,
    )
    assert (last.gpus, last.gpus_used) == (2, 2.0)
    assert last.jobs == (job("a-s0/0", 100.0, 0.5, cores=2, cpus=(0, 1)),)
    assert found.nodes[0].jobs == (job("a-s0/0", cores=2, cpus=(0, 1)),)
    assert len(found.hot_spots) == 1
