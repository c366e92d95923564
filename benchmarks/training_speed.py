"""The speed of a training on every core, with something beside it or without: trackers, viewers of the live page."""

from __future__ import annotations

import contextlib
import csv
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import ROOT, Line, both_ways
from orchestrator.machine import topology

STEPS = 614_400
MOST_SLOWER = 0.005


def slower(
    what: str,
    repeats: int,
    *,
    tables: str = "",
    beside: Callable[[Path], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> Line:
    """The shares by which a training is slower with ``tables`` in its job file, or with something beside it.

    Each repeat trains with and without; the order alternates.

    :param beside: begins with the run directory as its argument, and lasts as long as the training.
    :raises subprocess.CalledProcessError: a run failed.
    """
    shares = []
    for number in range(repeats):
        speeds = {}
        for is_with in both_ways(number, False, True):
            with tempfile.TemporaryDirectory() as folder:
                run_dir = Path(folder) / "run"
                with beside(run_dir) if is_with else contextlib.nullcontext():
                    speeds[is_with] = _mean_speed(run_dir, tables if is_with else "")
        shares.append(1 - speeds[True] / speeds[False])
    middle = statistics.median(shares)
    shown = f"{middle:+.2%} ({min(shares):+.2%} – {max(shares):+.2%})"
    return Line(what=what, measured=shown, target="< 0.5 %", good=middle < MOST_SLOWER, values=shares)


def _mean_speed(run_dir: Path, tables: str) -> float:
    """Mean env_steps/s of jobs that train the hopper, one on every core.

    :param tables: of the job file, in addition.
    """
    path = run_dir.with_suffix(".toml")
    seeds = list(range(topology.detect().physical_cores))
    path.write_text(
        f'name = "speed"\n{tables}[defaults]\ntotal_timesteps = {STEPS}\neval_episodes = 0\n'
        f'[[jobs]]\nname = "hopper"\nxml = "{ROOT / "mjcf" / "hopper.xml"}"\nseeds = {seeds}\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "orchestrator", "run", str(path), "--run-dir", str(run_dir)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with (run_dir / "summary.csv").open(newline="") as file:
        return statistics.mean(float(row["env_steps_per_s"]) for row in csv.DictReader(file))
