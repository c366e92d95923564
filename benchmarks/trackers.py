"""What trackers cost a training: the same jobs without any, and with each of them.

    python -m benchmarks.trackers [--repeats 5] [--trackers tensorboard,wandb,mlflow] [--env-steps 614400]

One job on every core trains the hopper. The figure is the mean env_steps/s of the jobs with a tracker, relative to the
run without trackers of the same repeat; the order alternates. W&B runs offline.

A tracker's package costs CPU time once for each run, when it is loaded and when it begins its files. So the share is
smaller the longer a run is. ``publish`` of a short run shows how much that is.
"""

from __future__ import annotations

import argparse
import functools
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ROOT, Line, at_least, print_table
from benchmarks.training_speed import ENV_STEPS, slower, train

TABLES = {
    "tensorboard": "tensorboard = true",
    "wandb": 'wandb = { mode = "offline" }',
    "mlflow": "mlflow = {}",
    "trackio": "trackio = {}",
}
SHORT_ENV_STEPS = 16_384


def cost(tracker: str, repeats: int, *, env_steps: int) -> list[Line]:
    what = f"slower with {tracker}, {env_steps:,} env_steps"
    lines = slower(what, repeats, env_steps=env_steps, tables=f"[track]\n{TABLES[tracker]}\n")
    return [*lines, at_least(f"CPU seconds of `publish --to {tracker}`", _published(tracker, repeats))]


def _published(tracker: str, repeats: int) -> list[float]:
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train(run_dir, SHORT_ENV_STEPS)
        for number in range(repeats):
            copied = shutil.copytree(run_dir, Path(folder) / str(number))
            command = [sys.executable, "-m", "orchestrator", "publish", str(copied), "--to", tracker]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            offline = ["--mode", "offline"] if tracker == "wandb" else []
            subprocess.run([*command, *offline], cwd=ROOT, check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--trackers", default="tensorboard,wandb,mlflow", help="of " + ",".join(TABLES))
    options.add_argument("--env-steps", type=int, default=ENV_STEPS, help="of each training (%(default)s)")
    known = options.parse_known_args()[0]
    names = known.trackers.split(",")
    if unknown := set(names) - TABLES.keys():
        options.error(f"--trackers {','.join(sorted(unknown))}: unknown; valid: {','.join(TABLES)}")
    parts = {name: functools.partial(cost, name, env_steps=known.env_steps) for name in names}
    print_table(__doc__, parts, options)


if __name__ == "__main__":
    main()
