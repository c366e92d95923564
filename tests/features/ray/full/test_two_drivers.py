"""Two runs at once on one node of a cluster, as users type them, and what they do when it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import cluster_helpers as helpers
import psutil
import pytest
from cluster_helpers import Machine, free_port
from command_helpers import STUB_WORKER, summary, wait_until, write_experiment
from ray_helpers import IMPATIENT, STUBBED, STUBS
from run_helpers import LONG

from orchestrator.machine import topology
from orchestrator.machine.cpu_holders import CpuHolders

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

RUN_IN_THE_BACKGROUND = f"""
import os, sys
if os.fork():
    os._exit(0)
from orchestrator.cli import main
{IMPATIENT}
{STUBS}
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


def arguments(folder: Path, address: str, jobs: int) -> list[str]:
    """Of ``run``, for an experiment of ``jobs`` long jobs in ``folder``."""
    job_file = write_experiment(folder, {**LONG, "name": folder.name, "seeds": list(range(jobs))})
    return [
        *map(str, (job_file, "--run-dir", folder / "run")),
        "--executor",
        "ray",
        "--ray-address",
        address,
    ]


def run_in_the_background(head: Machine, folder: Path, *words: str) -> psutil.Process:
    """The driver of ``run``; it leaves ``output`` and ``code`` in ``folder``."""
    with (folder / "output").open("w") as output:
        subprocess.run(
            head.command("-c", RUN_IN_THE_BACKGROUND, "run", *words),
            env=head.environment(CODE_FILE=str(folder / "code")),
            cwd=head.home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=True,
        )
    wait_until((folder / "run/ledger.sqlite3").exists, "the run to begin")
    (driver,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if words[0] in (process.info["cmdline"] or ())
    ]
    return driver


def workers(folder: Path) -> dict[int, set[int]]:
    """Pid → CPUs of the workers below ``folder``."""
    found = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            is_worker = STUB_WORKER in command and any(
                part.startswith(f"{folder}/") for part in command
            )
            if is_worker and os.getsid(process.pid) == process.pid:
                found[process.pid] = os.sched_getaffinity(process.pid)
        except (psutil.Error, ProcessLookupError):  # it has just ended
            continue
    return found


def full_node(folder: Path, cores: int) -> bool:
    """Whether every core trains a job, each on a CPU of its own; no CPU ever has two."""
    cpus_by_worker = workers(folder)
    assert len(cpus_by_worker) <= cores
    bound = [
        cpus for cpus in cpus_by_worker.values() if len(cpus) == 1
    ]  # the others have just been started
    assert len(set().union(*bound)) == len(bound), f"a CPU has two jobs: {bound}"
    return len(bound) == cores


def test_two_runs_never_train_two_jobs_on_one_cpu_and_end_with_a_message_when_the_cluster_does(
    tmp_path: Path,
) -> None:
    """The second run has more jobs than there are CPUs, so that one waits for room all the time."""
    cpus, cores = os.sched_getaffinity(0), topology.detect().capacity
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with helpers.machines(()) as (head,):
        port = free_port()
        head.done("up", "--address", "127.0.0.1", "--port", str(port))
        address = f"127.0.0.1:{port}"
        another_experiment = CpuHolders(Path(head.holders))
        another_experiment.publish(dict.fromkeys(cpus, 1))
        with head.running(*arguments(first, address, 1), typed=("-c", STUBBED)) as run:
            assert run.stdout is not None
            events = map(json.loads, run.stdout)
            waiting = next(event for event in events if event["event"] in ("waiting", "launched"))
            assert waiting["event"] == "waiting"
            assert "first-s0 waits on " in waiting["message"]
            assert not workers(tmp_path)
            driver = run_in_the_background(head, second, *arguments(second, address, cores + 1))
            another_experiment.close()
            assert (
                next(event for event in events if event["event"] == "launched")["job_id"]
                == "first-s0"
            )
            wait_until(lambda: full_node(tmp_path, cores), "a job on every core")
            run.send_signal(signal.SIGINT)
            assert {event["event"] for event in events} >= {"paused"}
            assert run.wait() == 130
        assert summary(first / "run")["first-s0"]["attempts"] == 1
        wait_until(
            lambda: full_node(second, cores), "the CPU of the first run to be used by the second"
        )
        head.done("down")
        driver.wait(helpers.PATIENCE_S)
        assert (second / "code").read_text() == "1"
        text = (second / "output").read_text()
        assert "the head of the Ray cluster has not answered" in text
        assert "resume" in text
        assert "Traceback" not in text
        assert not workers(tmp_path)
        assert not [*(second / "run").glob("*-shm"), *(second / "run").glob("*-wal")]
