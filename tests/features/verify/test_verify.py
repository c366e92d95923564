"""``verify`` passes what deserves it, and finds out what depends on neighbours, chance, or never
being killed."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest
from command_helpers import Experiment, invoke, odd, succeed, wait_until, write_experiment

from orchestrator.features.verify import certificate

SHORT = ("--iterations", "4")

GUILTY = '''
import os
import sys
import time
from pathlib import Path

import numpy as np
from odd import Odd

STEPS = 0


def neighbours():
    """Workers of the same supervisor that run now, this one included."""
    me = [line for line in Path("/proc/self/environ").read_bytes().split(b"\\0") if b"ORCHESTRATOR_TOKEN=" in line]
    if not me:
        return 1  # under examination
    count = 0
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            count += me[0].split(b"/")[0] in process.read_bytes()
        except OSError:
            pass
    return count


def look_around():
    """How many neighbours there are; where some are to start, it waits for the first one."""
    due = os.environ.get("ORCHESTRATOR_TOKEN") and any(Path(sys.argv[1]).parent.glob("neighbour-*"))
    while due and neighbours() < 2:
        time.sleep(0.05)
    return neighbours()


class Guilty(Odd):
    def __init__(self, deed):
        super().__init__("nothing", 0)
        self.bias = 0.1 * look_around() if deed == "look around" else 0.0
        self.deed = deed
        if deed == "hold a file":
            self.file = open(os.devnull)

    def step(self, action):
        global STEPS
        STEPS += 1
        observation, *rest = super().step(action)
        bias = {"count outside": STEPS % 997 / 997, "roll dice": os.urandom(1)[0] / 256}.get(self.deed, self.bias)
        return (observation + np.float32(bias), *rest)


def make(xml=None, seed=0, deed=None):
    return Guilty(deed)
'''
"""An environment that is not a function of its seed, in one way or another."""


def guilty(name: str, deed: str) -> dict[str, Any]:
    return {"name": name, "entry_point": "guilty:make", "env_kwargs": {"deed": deed}}


def verified(directory: Path, *jobs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of the certificate of a verification that fails, by job."""
    path = write_experiment(
        directory, *jobs, defaults=commands.TINY.replace("n_steps = 64", "n_steps = 256")
    )
    (directory / "guilty.py").write_text(GUILTY)
    done = invoke("verify", path, *SHORT, "--jobs", "*", "--output", "out", cwd=directory)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (directory / "out/verify").is_dir(), "the trainings that failed are kept"
    written = json.loads((directory / "out" / certificate.FILE).read_text())
    for entry in written["jobs"]:
        for reason in entry["reasons"]:
            assert reason in done.stdout
    return {entry["job_id"]: entry for entry in written["jobs"]}


@pytest.mark.nightly
def test_all_jobs_of_a_cleaned_run_directory_pass_without_their_original_files(
    finished: Experiment,
) -> None:
    finished.jobs.unlink()
    assert invoke("clean", finished.run_dir, cwd=finished.cwd).returncode == 0
    done = succeed("verify", finished.run_dir, *SHORT, "--json", cwd=finished.cwd)
    written = json.loads((finished.run_dir / certificate.FILE).read_text())
    assert json.loads(done.stdout) == written
    assert written["verdict"] == "PASS"
    assert written["machine"]["cpus"] >= 1
    for entry in written["jobs"]:
        assert entry["verdict"] == "PASS"
        assert (
            entry["alone_sha256"] == entry["together_sha256"] == entry["resumed_sha256"] is not None
        )
        assert entry["neighbours"] >= 1
        assert entry["resumed_from"] > 0
        assert entry["slowdown"]["low"] <= entry["slowdown"]["value"] <= entry["slowdown"]["high"]
    assert {entry["job_id"] for entry in written["jobs"]} == {"hopper-s0", "balancer-s0"}
    assert not (finished.run_dir / "verify").exists(), "nothing but the certificate is left"
    assert invoke("status", finished.run_dir, cwd=finished.cwd).returncode == 0


@pytest.mark.nightly
def test_only_jobs_that_depend_on_neighbours_randomness_or_state_outside_of_the_checkpoint_fail(
    tmp_path: Path,
) -> None:
    jobs = verified(
        tmp_path,
        odd("good", "nothing"),
        guilty("nosy", "look around"),
        guilty("gambler", "roll dice"),
        guilty("hidden", "count outside"),
        guilty("open", "hold a file"),
    )
    assert jobs["good-s0"]["verdict"] == "PASS"
    nosy = jobs["nosy-s0"]
    assert nosy["verdict"] == "FAIL"
    assert nosy["together_sha256"] != nosy["alone_sha256"]
    assert "depends on what runs beside it" in nosy["reasons"][0]
    assert jobs["gambler-s0"]["verdict"] == "FAIL"
    assert "even in two trainings alone" in jobs["gambler-s0"]["reasons"][0]
    for name, words in (
        ("hidden-s0", ["outside of its attributes"]),
        ("open-s0", ["cannot be saved", "TextIOWrapper"]),
    ):
        entry = jobs[name]
        assert entry["verdict"] == "FAIL"
        assert entry["together_sha256"] == entry["alone_sha256"] != entry["resumed_sha256"]
        (reason,) = entry["reasons"]
        assert all(word in reason for word in words)


@pytest.mark.nightly
def test_interrupted_it_leaves_no_process_and_no_scratch(finished: Experiment) -> None:
    command = commands.command("verify", finished.run_dir, "--iterations", "100000")
    with commands.start(command, cwd=finished.cwd) as process:
        folder = finished.run_dir / "verify/alone-0-0/jobs"
        wait_until(lambda: list(folder.glob("*/progress.csv")), "it trains")
        worker = next(
            pid for pid in children(process.pid) if b"orchestrator.worker" in command_line(pid)
        )
        token = commands.token_of(worker)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=commands.PATIENCE_S)
    assert process.returncode == 130, out + err
    assert "Traceback" not in out + err
    assert commands.carriers(token) == []
    assert not (finished.run_dir / "verify").exists()
    assert not (finished.run_dir / certificate.FILE).exists()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
