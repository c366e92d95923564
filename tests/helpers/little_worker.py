"""A worker without a training: it counts env_steps, saves and resumes from checkpoints, and writes the
files of a real one. Its "weights" depend on every step.

Started as ``python little_worker.py JOB_DIR NUMBER``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from orchestrator.worker.runtime import supervisor_connection

INTERRUPTED = 11
PAUSED = 15


def weights_after(env_steps: int, n_steps: int = 10) -> str:
    """What a job has learned that was never interrupted."""
    weights = ""
    for step in range(n_steps, env_steps + n_steps, n_steps):
        weights = hashlib.sha256(f"{weights}{step}".encode()).hexdigest()
    return weights


def write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.write_text(text)
    beside.rename(path)


def main() -> int:
    channel = supervisor_connection.attach(awaits_go=True)
    job = Path(sys.argv[1])
    rank = int(os.environ.get("RANK", "0"))
    spec = json.loads((job / "spec.json").read_text())
    end = spec.get("pause_at") or spec["total_timesteps"]
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    checkpoints = job / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    found = sorted(checkpoints.glob("checkpoint-*.pt"))
    step, weights = json.loads(found[-1].read_text()) if found else (0, "")
    while step < end and not asked:
        time.sleep(spec["hyperparameters"].get("sleep_s", 0.01))
        step += 10
        weights = hashlib.sha256(f"{weights}{step}".encode()).hexdigest()
        if rank == 0:
            write(checkpoints / f"checkpoint-{step:012d}.pt", json.dumps([step, weights]))
            for old in sorted(checkpoints.glob("checkpoint-*.pt"))[:-2]:
                old.unlink()
            if channel is not None:
                message = {"phase": "training", "env_steps": step, "iteration": step // 10}
                channel.send(json.dumps(message).encode() + b"\n")
    code = 0 if step >= spec["total_timesteps"] else PAUSED if step >= end else INTERRUPTED
    name = f"attempts/{sys.argv[2]}/" + (f"rank-{rank}.exit.json" if rank else "exit.json")
    if code == 0 and rank == 0:
        write(job / "model.zip", weights)
    record = {"code": code, "message": "", "env_steps": step, "weights_sha256": weights}
    write(job / name, json.dumps(record))
    return code


if __name__ == "__main__":
    sys.exit(main())
