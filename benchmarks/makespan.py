"""The makespan of eight short trainings, as benchmarks of executors compare it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from benchmarks.harness import ORCHESTRATOR, ROOT

JOBS = 8
STEPS = 10_240


def job_file(folder: Path) -> Path:
    path = folder / "ant.toml"
    path.write_text(
        f'name = "ant"\n[defaults]\ntotal_timesteps = {STEPS}\nlearner = "sb3"\neval_episodes = 0\nnormalize = false\n'
        f'checkpoint_every = 1_000_000_000\n[[jobs]]\nname = "ant"\nenv = "Ant-v5"\nseeds = {list(range(JOBS))}\n',
        encoding="utf-8",
    )
    return path


def makespan_s(file: Path, *options: str) -> float:
    """Makespan of ``run FILE`` with ``options``: from the first submission to the last end."""
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        run_dir = Path(folder, "run")
        command = [*ORCHESTRATOR, "run", str(file), "--run-dir", str(run_dir), "--json", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        # The folder of an attempt is created right before its submission; "launched" is reported
        # when it runs.
        submitted = [folder.stat().st_mtime for folder in run_dir.glob("jobs/*/attempts")]
        ended = [float(event["time"]) for event in events if event["event"] == "succeeded"]
        return max(ended) - min(submitted)
