"""What trackers cost a training: the same jobs without any, and with each of them.

    python -m benchmarks.trackers [--repeats 5] [--trackers tensorboard,wandb,mlflow]

One job on every core trains the hopper for 614,400 env_steps. The figure is the mean env_steps/s of the jobs with a
tracker, relative to the run without trackers of the same repeat; the order alternates. W&B runs offline.
"""

from __future__ import annotations

import argparse
import functools

from benchmarks.harness import Line, print_table
from benchmarks.training_speed import slower

TABLES = {
    "tensorboard": "tensorboard = true",
    "wandb": 'wandb = { mode = "offline" }',
    "mlflow": "mlflow = {}",
    "trackio": "trackio = {}",
}


def cost(tracker: str, repeats: int) -> list[Line]:
    return slower(f"slower with {tracker}", repeats, tables=f"[track]\n{TABLES[tracker]}\n")


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--trackers", default="tensorboard,wandb,mlflow", help="of " + ",".join(TABLES))
    names = options.parse_known_args()[0].trackers.split(",")
    if unknown := set(names) - TABLES.keys():
        options.error(f"--trackers {','.join(sorted(unknown))}: unknown; valid: {','.join(TABLES)}")
    print_table(__doc__, {name: functools.partial(cost, name) for name in names}, options)


if __name__ == "__main__":
    main()
