"""What trackers cost a training: the same jobs without any, and with each of them.

    python -m benchmarks.trackers [--repeats 5] [--trackers tensorboard,wandb,mlflow]

One job on every core trains the hopper for 614,400 env_steps. The figure is the mean env_steps/s of the jobs with a
tracker, relative to the run without trackers of the same repeat; the order alternates. W&B runs offline.
"""

from __future__ import annotations

import argparse
import csv
import functools
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ROOT, Line, both_ways, print_table
from orchestrator.machine import topology

STEPS = 614_400
MOST_SLOWER = 0.005
TABLES = {
    "tensorboard": "tensorboard = true",
    "wandb": 'wandb = { mode = "offline" }',
    "mlflow": "mlflow = {}",
    "trackio": "trackio = {}",
}


def speed(tracker: str) -> float:
    """Mean env_steps/s of the jobs of a run. :raises subprocess.CalledProcessError: it failed."""
    seeds = list(range(topology.detect().physical_cores))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.toml"
        track = f"[track]\n{TABLES[tracker]}\n" if tracker else ""
        path.write_text(
            f'name = "trackers"\n{track}[defaults]\ntotal_timesteps = {STEPS}\neval_episodes = 0\n'
            f'[[jobs]]\nname = "hopper"\nxml = "{ROOT / "mjcf" / "hopper.xml"}"\nseeds = {seeds}\n',
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "orchestrator", "run", str(path), "--run-dir", f"{folder}/run"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        with (Path(folder) / "run/summary.csv").open(newline="") as file:
            return statistics.mean(float(row["env_steps_per_s"]) for row in csv.DictReader(file))


def cost(tracker: str, repeats: int) -> list[Line]:
    shares = []
    for number in range(repeats):
        speeds = {side: speed(side) for side in both_ways(number, "", tracker)}
        shares.append(1 - speeds[tracker] / speeds[""])
    middle = statistics.median(shares)
    shown = f"{middle:+.2%} ({min(shares):+.2%} – {max(shares):+.2%})"
    good = middle < MOST_SLOWER
    return [Line(what=f"slower with {tracker}", measured=shown, target="< 0.5 %", good=good, values=shares)]


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--trackers", default="tensorboard,wandb,mlflow", help="of " + ",".join(TABLES))
    names = options.parse_known_args()[0].trackers.split(",")
    if unknown := set(names) - TABLES.keys():
        options.error(f"--trackers {','.join(sorted(unknown))}: unknown; valid: {','.join(TABLES)}")
    print_table(__doc__, {name: functools.partial(cost, name) for name in names}, options)


if __name__ == "__main__":
    main()
