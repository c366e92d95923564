"""The speed of a training on every core, with something beside it or without: trackers, viewers of the live page."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, Line
from orchestrator.machine import topology

STEPS = 614_400
MOST_SLOWER = 0.005


def mean_speed(run_dir: Path, tables: str = "", *, steps: int = STEPS) -> float:
    """Mean env_steps/s of jobs that train the hopper, one on every core.

    :param tables: of the job file, in addition.
    :raises subprocess.CalledProcessError: the run failed.
    """
    path = run_dir.with_suffix(".toml")
    seeds = list(range(topology.detect().physical_cores))
    path.write_text(
        f'name = "speed"\n{tables}[defaults]\ntotal_timesteps = {steps}\neval_episodes = 0\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{ROOT / "mjcf" / "hopper.xml"}"\nseeds = {seeds}\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "orchestrator", "run", str(path), "--run-dir", str(run_dir)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with (run_dir / "summary.csv").open(newline="") as file:
        return statistics.mean(float(row["env_steps_per_s"]) for row in csv.DictReader(file))


def slower(what: str, shares: Sequence[float]) -> Line:
    """The line of shares by which a training was slower with something beside it than without, one for each repeat."""
    middle = statistics.median(shares)
    shown = f"{middle:+.2%} ({min(shares):+.2%} – {max(shares):+.2%})"
    return Line(what=what, measured=shown, target="< 0.5 %", good=middle < MOST_SLOWER, values=shares)
