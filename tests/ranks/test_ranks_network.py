"""Ranks that meet each other: several jobs on one machine, under ``torchrun``, and on machines of
their own."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ranks_helpers as helpers
import worker_helpers as worker
from network_helpers import Network, network

from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.paths import JobPaths

pytestmark = pytest.mark.nightly

JOBS = {name: helpers.spec(learner=name, total_timesteps=1024) for name in ("fast", "sb3")}


def hashes(records: list[ExitRecord]) -> set[str | None]:
    return {record.weights_sha256 for record in records}


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str | None]]:
    """Two jobs on this machine at the same time: what each has come to, the same on both of its
    ranks."""
    root = tmp_path_factory.mktemp("at-once")
    attempts = {name: helpers.Attempt(worker.job(root / name, spec)) for name, spec in JOBS.items()}
    with attempts["fast"], attempts["sb3"]:
        weights = {}
        for name, attempt in attempts.items():
            assert attempt.codes() == [0, 0], attempt.log
            weights[name] = hashes(attempt.records)
    return weights


def test_two_jobs_at_once_do_not_disturb_each_other(at_once: dict[str, set[str | None]]) -> None:
    """The next test trains one of them alone, to the same bits."""
    for name in JOBS:
        assert len(at_once[name]) == 1
        assert None not in at_once[name]
    assert at_once["fast"] != at_once["sb3"]


def test_torchrun_starts_the_same_workers(
    at_once: dict[str, set[str | None]], tmp_path: Path
) -> None:
    paths = worker.job(tmp_path / "job", JOBS["fast"])
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, "-m", "orchestrator.worker", str(paths.root), "0"],
        env={
            **os.environ,
            **helpers.SECRET,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(worker.REPOSITORY),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=helpers.TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    attempt = paths.attempt(0)
    records = [ExitRecord.from_json(attempt.exit_of(rank).read_text()) for rank in range(2)]
    assert hashes(records) == at_once["fast"]
    assert paths.model.exists()
    assert not attempt.rendezvous.exists(), "they met where torchrun told them to"


# -- two machines


@pytest.fixture
def hosts() -> Iterator[Network]:
    with network("10.143.7.1", "10.143.7.2") as made:
        yield made


def over_the_cable(hosts: Network, paths: JobPaths, **environment: str) -> helpers.Attempt:
    return helpers.Attempt(
        paths,
        commands=[["ip", "netns", "exec", name] for name in hosts.names],
        environments=[
            {"LOCAL_RANK": "0", "GLOO_SOCKET_IFNAME": device} for device in hosts.devices
        ],
        MASTER_ADDR=hosts.addresses[0],
        MASTER_PORT="29417",
        **environment,
    )


def test_ranks_on_two_machines_come_to_the_same_bits(
    hosts: Network, at_once: dict[str, set[str | None]], tmp_path: Path
) -> None:
    over_tcp = dataclasses.replace(JOBS["fast"], backend="gloo")
    with over_the_cable(hosts, worker.job(tmp_path, over_tcp)) as attempt:
        assert attempt.codes() == [0, 0], attempt.log
        assert hashes(attempt.records) == at_once["fast"]
    assert not attempt.attempt.rendezvous.exists()
    for number in range(2):
        assert hosts.received_bytes(number) > 100_000, "gradients went over the cable"
