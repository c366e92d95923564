"""Several runs at once on one node of a cluster, as users type them, and what they do when it ends."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster_helpers as helpers
import psutil
import pytest
from cluster_helpers import Machine, free_port
from command_helpers import summary, wait_until, write_experiment
from ray_helpers import LONG, SHORT

from orchestrator.machine import topology

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

RUN_IN_THE_BACKGROUND = """
import os, sys
if os.fork():
    os._exit(0)
from orchestrator.cli import main
code = None
try:
    main()
except SystemExit as end:
    code = end.code
    raise
finally:
    open(os.environ["CODE_FILE"], "w").write(repr(code))
"""
"""A command whose parent process has ended, as after ``nohup … &`` and the end of the terminal."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Machine, str]]:
    """A cluster of one node, and its address."""
    with helpers.machines(()) as (head,):
        port = free_port()
        head.done("up", "--address", "127.0.0.1", "--port", str(port))
        yield head, f"127.0.0.1:{port}"


def arguments(folder: Path, address: str, *jobs: dict[str, Any]) -> list[str | Path]:
    """Of ``run``, for an experiment in ``folder``."""
    job_file = write_experiment(folder, *jobs)
    return [job_file, "--run-dir", folder / "run", "--executor", "ray", "--ray-address", address]


def workers(folder: Path) -> dict[int, set[int]]:
    """Pid → CPUs of the workers that train below ``folder``, without their child processes."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            is_worker = "orchestrator.worker" in command and any(part.startswith(f"{folder}/") for part in command)
            if is_worker and os.getsid(process.pid) == process.pid:
                found[process.pid] = os.sched_getaffinity(process.pid)
        except (psutil.Error, ProcessLookupError):  # it has just ended
            continue
    return found


def test_two_runs_on_one_node_never_train_two_jobs_on_one_cpu(tmp_path: Path, node: tuple[Machine, str]) -> None:
    head, address = node
    cores = topology.detect().capacity
    job = {**SHORT, "total_timesteps": 4_096, "seeds": [0, 1]}
    first, second = tmp_path / "first", tmp_path / "second"
    most = 0
    with head.running(*arguments(first, address, job)) as one, head.running(*arguments(second, address, job)) as other:
        while one.poll() is None or other.poll() is None:
            looked = workers(tmp_path)
            most = max(most, len(looked))
            assert len(looked) <= cores
            bound = [cpus for cpus in looked.values() if len(cpus) == 1]  # else it has just been started
            assert len(set().union(*bound)) == len(bound), f"a CPU has two jobs: {bound}"
        assert (one.returncode, other.returncode) == (0, 0)
    assert most == cores, "both runs use the node"
    for folder in (first, second):
        assert [row["attempts"] for row in summary(folder / "run").values()] == [1, 1]


def test_an_attempt_waits_for_the_cpus_of_another_experiment_and_counts_no_failure(
    tmp_path: Path, node: tuple[Machine, str]
) -> None:
    head, address = node
    (locks,) = head.temporary.glob("orchestrator-*")
    held = [(locks / f"cpu-{cpu}").open("w") for cpu in os.sched_getaffinity(0)]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    with head.running(*arguments(tmp_path / "a", address, SHORT)) as run:
        assert run.stdout is not None
        events = []
        for line in run.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "waiting":
                assert "short-s0 waits on " in events[-1]["message"]
                assert not workers(tmp_path)
                for file in held:
                    file.close()
    assert run.returncode == 0
    assert [event["event"] for event in events if event["event"] in ("waiting", "launched", "succeeded")] == [
        "waiting",
        "launched",
        "succeeded",
    ]
    assert [row["attempts"] for row in summary(tmp_path / "a/run").values()] == [1]


def test_runs_whose_cluster_goes_down_end_with_a_message_and_are_resumable(
    tmp_path: Path, node: tuple[Machine, str]
) -> None:
    """One trains; the other waits for room, and its parent process has ended."""
    head, address = node
    full = tmp_path / "full"
    cores = topology.detect().capacity
    with head.running(*arguments(full, address, {**LONG, "seeds": list(range(cores))})) as training:
        wait_until(lambda: len(workers(full)) == cores, "a full node")
        waiting = tmp_path / "waiting"
        code = tmp_path / "code"
        with (tmp_path / "output").open("w") as output:
            subprocess.run(
                head.command("-c", RUN_IN_THE_BACKGROUND, "run", *map(str, arguments(waiting, address, LONG))),
                env=head.environment(CODE_FILE=str(code)),
                cwd=head.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                check=True,
            )
        wait_until((waiting / "run/ledger.sqlite3").exists, "the second run to begin")
        processes = psutil.process_iter(["cmdline"])
        (driver,) = [process for process in processes if str(waiting / "run") in (process.info["cmdline"] or ())]
        head.done("down")
        assert training.wait(helpers.PATIENCE_S) == 1
        driver.wait(helpers.PATIENCE_S)
    assert code.read_text() == "1"
    text = (tmp_path / "output").read_text()
    assert "the head of the Ray cluster has not answered" in text
    assert "resume" in text
    assert "Traceback" not in text
    for folder in (full, waiting):
        assert not workers(folder)
        assert not [*(folder / "run").glob("*-shm"), *(folder / "run").glob("*-wal")]
        assert head.run([sys.executable, "-m", "orchestrator", "status", str(folder / "run")]).returncode in (0, 1)
