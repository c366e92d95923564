"""Whole runs on a real Ray cluster when something dies or fills up: nothing is lost, and no process
is orphaned."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from command_helpers import Run, carriers, give, summary, token_of, wait_until, write_experiment
from executor_helpers import await_gone
from ray_helpers import (
    Cluster,
    checkpoints,
    has_progressed,
    last_attempt,
    options,
    stubbed,
    until_resumed,
)
from run_helpers import LONG, SHORT, weights

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

GONE_WITHIN_S = 10.0
"""Documented limit for the end of all trainings after the death of their driver."""

ENDING = {**SHORT, "name": "ending", "total_timesteps": 32_000, "checkpoint_every": 3_200}
"""Ends by itself, long after its first checkpoint has been received."""
LARGE = {**SHORT, "name": "large", "policy_kwargs": {"net_arch": [256, 256]}}
"""Its checkpoints have 1.6 MiB each."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights of both jobs when trained on this machine without Ray."""
    cwd = tmp_path_factory.mktemp("undisturbed")
    jobs = write_experiment(cwd, ENDING, LARGE)
    assert give("run", jobs, "--run-dir", "local", cwd=cwd).returncode == 0
    return weights(cwd / "local")


# -- the user, or the driver


def test_after_a_stop_and_after_the_death_of_the_driver_the_run_resumes(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    """A stop lets every node checkpoint. No training outlives a driver that is killed."""
    names = ["long-s0", "long-s1"]
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1]})
    run_dir = tmp_path / "run"
    with Run(jobs, *options(ray_cluster, "run", f"file://{tmp_path}/between"), cwd=tmp_path) as run:
        assert len({run.until("launched")["node"] for _ in names}) == 2
        wait_until(lambda: has_progressed(run_dir, dict.fromkeys(names, 512)), "progress")
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert [event["event"] for event in run.events].count("paused") == 2
    stopped = {name: row["env_steps"] for name, row in summary(run_dir).items()}

    with Run(jobs, *options(ray_cluster, "run", "stream"), cwd=tmp_path) as run:
        pids = [run.until("launched")["pid"] for _ in names]
        for name in names:
            until_resumed(run_dir, name, 1, stopped[name])
        wait_until(
            lambda: max(checkpoints(run_dir, "long-s0")) > stopped["long-s0"],
            "a checkpoint to be received",
        )
        tokens = [token_of(pid) for pid in pids]
        assert {pid for token in tokens for pid in carriers(token)} >= {*pids}
        run.signal(signal.SIGKILL)
        wait_until(
            lambda: not any(map(carriers, tokens)), "no process of any attempt", GONE_WITHIN_S
        )
    saved, before = max(checkpoints(run_dir, "long-s0")), summary(run_dir)["long-s0"]["env_steps"]

    with Run(jobs, *options(ray_cluster, "run", "stream"), cwd=tmp_path) as again:
        again.until("launched", "long-s0")
        until_resumed(run_dir, "long-s0", 2, saved)
        wait_until(lambda: summary(run_dir)["long-s0"]["env_steps"] > before, "progress")
        again.signal(signal.SIGINT)
        assert again.end() == 130
    assert last_attempt(run_dir, "long-s0")["resumed_from"] == saved


# -- the cluster


@pytest.mark.parametrize(
    "kill", [Cluster.kill, Cluster.kill_raylet], ids=["the machine", "its raylet alone"]
)
def test_a_job_whose_node_dies_resumes_elsewhere_from_the_received_checkpoint(
    tmp_path: Path, ray_cluster: Cluster, undisturbed: dict[str, str], kill: Any
) -> None:
    jobs = write_experiment(tmp_path, ENDING)
    run_dir = tmp_path / "stream"
    with (
        ray_cluster.further(num_cpus=8) as most_cores,
        Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run,
    ):
        first = run.until("launched")
        assert first["node"] == ray_cluster.name(most_cores)
        wait_until(lambda: checkpoints(run_dir, "ending-s0"), "a checkpoint to be received")
        kill(ray_cluster, most_cores)
        await_gone([first["pid"]])
        assert run.end() == 0
    row = summary(run_dir)["ending-s0"]
    assert row["attempts"] == 2, "nothing more was sent to the dead node"
    assert row["node"] != first["node"]
    assert last_attempt(run_dir, "ending-s0")["resumed_from"] >= 3_200
    assert row["weights_sha256"] == undisturbed["ending-s0"]


def test_a_node_that_joins_while_a_job_waits_for_room_gets_it(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    whole_node = {"cores": 4, "threads": 1, "memory": "1 GiB"}
    jobs = write_experiment(tmp_path, {**LONG, "seeds": [0, 1, 2], "resources": whole_node})
    with Run(jobs, *options(ray_cluster, "shared"), cwd=tmp_path, typed=stubbed) as run:
        others = {run.until("launched")["node"] for _ in range(2)}
        with ray_cluster.further() as late:
            assert run.until("launched")["node"] == ray_cluster.name(late)
            assert ray_cluster.name(late) not in others
            run.signal(signal.SIGINT)
            assert run.end() == 130


def test_different_nodes_get_the_jobs_that_they_have_room_for(
    tmp_path: Path, ray_cluster: Cluster
) -> None:
    """The other nodes have 4 cores and 8 GiB each."""
    amounts = {
        "small": {"cores": 1, "memory": "512 MiB"},
        "hungry": {"cores": 1, "memory": "20 GiB"},
        "wide": {"cores": 2, "memory": "4 GiB"},
    }
    jobs = write_experiment(
        tmp_path,
        *(
            {**LONG, "name": name, "seeds": [0, 1], "resources": {"threads": 1, **amount}}
            for name, amount in amounts.items()
        ),
    )
    for name in amounts:
        for seed in range(2):
            (tmp_path / f"go-{name}-s{seed}").touch()
    with (
        ray_cluster.further(num_cpus=16, memory=1 << 30) as lean,
        ray_cluster.further(num_cpus=1, memory=64 << 30) as thin,
        Run(jobs, *options(ray_cluster, "shared"), cwd=tmp_path, typed=stubbed) as run,
    ):
        assert run.end() == 0, run.stderr
    nodes: dict[str, list[str]] = {}
    for row in summary(tmp_path / "shared").values():
        nodes.setdefault(row["job_id"].partition("-")[0], []).append(row["node"])
    assert nodes["small"] == [ray_cluster.name(lean)] * 2, "it has the most cores"
    assert nodes["hungry"] == [ray_cluster.name(thin)] * 2, "no other has so much memory"
    assert not {ray_cluster.name(lean), ray_cluster.name(thin)} & {*nodes["wide"]}
    hungry = [
        event["event"] for event in run.events if event.get("job_id", "").startswith("hungry")
    ]
    assert hungry == ["launched", "succeeded"] * 2, "one after the other, on its one core"


def test_a_job_that_fills_the_disk_of_its_node_resumes_elsewhere(
    tmp_path: Path, ray_cluster: Cluster, undisturbed: dict[str, str], small_disk: Path
) -> None:
    """The disk has room for one checkpoint."""
    jobs = write_experiment(tmp_path, LARGE)
    with (
        ray_cluster.further(num_cpus=8, temporary=small_disk) as full,
        Run(jobs, *options(ray_cluster, "stream"), cwd=tmp_path) as run,
    ):
        assert run.end() == 0, run.stderr
        name = ray_cluster.name(full)
    nodes = [event["node"] for event in run.events if event["event"] == "launched"]
    assert nodes[0] == name
    assert len(nodes) == 2
    assert nodes[1] != name
    messages = [
        event["message"] for event in run.events if event["event"] in ("warning", "retrying")
    ]
    assert f"{name} is no longer used: its disk is full" in messages
    assert any(f"no space left on the disk of {name}" in message for message in messages)
    assert last_attempt(tmp_path / "stream", "large-s0")["resumed_from"] == 128, (
        "its checkpoint had been received"
    )
    assert weights(tmp_path / "stream")["large-s0"] == undisturbed["large-s0"]
