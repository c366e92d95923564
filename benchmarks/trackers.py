"""What trackers cost a training: the same jobs without any, and with each of them.

    python -m benchmarks.trackers [--repeats 5] [--trackers tensorboard,wandb,mlflow]

One job on every core trains the hopper for 614,400 env_steps. The figure is the mean env_steps/s of the jobs with a
tracker, relative to the run without trackers of the same repeat; the order alternates. W&B runs offline.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from pathlib import Path

from benchmarks.harness import Line, both_ways, print_table
from benchmarks.training_speed import mean_speed, slower

TABLES = {
    "tensorboard": "tensorboard = true",
    "wandb": 'wandb = { mode = "offline" }',
    "mlflow": "mlflow = {}",
    "trackio": "trackio = {}",
}


def speed(tracker: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return mean_speed(Path(folder) / "run", f"[track]\n{TABLES[tracker]}\n" if tracker else "")


def cost(tracker: str, repeats: int) -> list[Line]:
    shares = []
    for number in range(repeats):
        speeds = {side: speed(side) for side in both_ways(number, "", tracker)}
        shares.append(1 - speeds[tracker] / speeds[""])
    return [slower(f"slower with {tracker}", shares)]


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--trackers", default="tensorboard,wandb,mlflow", help="of " + ",".join(TABLES))
    names = options.parse_known_args()[0].trackers.split(",")
    if unknown := set(names) - TABLES.keys():
        options.error(f"--trackers {','.join(sorted(unknown))}: unknown; valid: {','.join(TABLES)}")
    print_table(__doc__, {name: functools.partial(cost, name) for name in names}, options)


if __name__ == "__main__":
    main()
