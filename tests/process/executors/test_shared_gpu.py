"""Which of the GPUs that nvidia-smi lists the workers of a run see, and who shares one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import command_helpers as commands
import pytest

NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-aaaa, NVIDIA T4, 15360, 14900"
"""
WORKER = """
import json, os, pathlib, sys, time
job, number = pathlib.Path(sys.argv[1]), sys.argv[2]
others = [other for other in job.parent.iterdir() if (other / "seen.json").exists()]
running = [other.name for other in others if not (other / "attempts/0/exit.json").exists()]
names = "CUDA_VISIBLE_DEVICES", "ORCHESTRATOR_GPU_SHARE"
(job / "seen.new").write_text(json.dumps([[os.environ.get(name) for name in names], running]))
(job / "seen.new").rename(job / "seen.json")
partner = {"one-s0": "two-s0", "two-s0": "one-s0"}.get(job.name)
while partner and not (job.parent / partner / "seen.json").exists():
    time.sleep(0.01)
record = {"code": 0, "message": "", "env_steps": 1, "ep_rew_mean": 1.0}
(job / "attempts" / number / "exit.json").write_text(json.dumps(record))
"""


def job(name: str, gpus: float) -> dict[str, Any]:
    return {"name": name, "env": "CartPole-v1", "resources": {"gpus": gpus, "memory": "64 MiB"}}


def test_two_jobs_share_a_gpu_and_one_that_needs_all_of_it_has_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    commands.add_to_server(monkeypatch, commands.EXAMINE_NOTHING + commands.with_worker(WORKER))
    jobs = commands.write_experiment(tmp_path, job("one", 0.5), job("all", 1), job("two", 0.5))
    done = commands.succeed("run", jobs, "--run-dir", "run", "--max-parallel", "3", cwd=tmp_path)
    seen = {
        name: json.loads((tmp_path / f"run/jobs/{name}-s0/seen.json").read_text())
        for name in ("one", "two", "all")
    }
    assert [seen[name][0] for name in seen] == [
        ["GPU-aaaa", "0.5"],
        ["GPU-aaaa", "0.5"],
        ["GPU-aaaa", None],
    ]
    assert seen["all"][1] == []
    shown = done.stdout + done.stderr
    assert shown.count("with GPU GPU-aaaa (share 0.5)") == 2
    assert shown.count("with GPU GPU-aaaa") == 3

    one = {"name": "wide", "env": "CartPole-v1", "resources": {"gpus": 2}}
    refused = commands.invoke(
        "run", commands.write_experiment(tmp_path / "more", one), cwd=tmp_path
    )
    assert refused.returncode == 2
