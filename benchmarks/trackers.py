"""What trackers cost a training: the same jobs without any, and with each of them.

    python -m benchmarks.trackers [--repeats 5] [--trackers tensorboard,wandb,mlflow] [--env-steps 614400]

One job on every core trains the hopper. The figure is the mean env_steps/s of the jobs with a
tracker, relative to the run without trackers of the same repeat; the order alternates. W&B runs
offline.

Most of the CPU time of a tracker goes into loading its package and beginning its files, once for
each run. So the longer a run is, the smaller is the share.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.harness import Line, at_most, print_table
from benchmarks.training_speed import ENV_STEPS, slower
from orchestrator.features.tracking.track_process import MODULE

TABLES = {
    "tensorboard": "tensorboard = true",
    "wandb": 'wandb = { mode = "offline" }',
    "mlflow": "mlflow = {}",
}
WATCH_S = 4.0


def cost(tracker: str, repeats: int, *, env_steps: int) -> list[Line]:
    what = f"{tracker}, {env_steps:,} env_steps"
    seconds = list[float]()
    tables = f"[track]\n{TABLES[tracker]}\n"
    beside = functools.partial(_watched, seconds)
    lines = slower(
        f"slower with {what}", repeats, env_steps=env_steps, tables=tables, beside=beside
    )
    return [*lines, at_most(f"CPU seconds of the processes of {what}", seconds)]


@contextlib.contextmanager
def _watched(seconds: list[float], run_dir: Path) -> Iterator[None]:
    """Append the CPU seconds that the tracker's processes have taken by the end, or a little before
    it."""
    has_ended = threading.Event()
    taken = dict[int, float]()

    def watch() -> None:
        tracker: psutil.Process | None = None
        while not has_ended.wait(WATCH_S):
            if tracker is None:
                running = psutil.process_iter(["cmdline"])
                tracker = next(
                    (
                        one
                        for one in running
                        if {MODULE, str(run_dir)} <= {*(one.info["cmdline"] or ())}
                    ),
                    None,
                )
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [tracker, *tracker.children(recursive=True)] if tracker else ():
                    times = process.cpu_times()
                    taken[process.pid] = times.user + times.system

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        seconds.append(sum(taken.values()))


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--trackers", default="tensorboard,wandb,mlflow", help="of " + ",".join(TABLES)
    )
    options.add_argument(
        "--env-steps", type=int, default=ENV_STEPS, help="of each training (default: %(default)s)"
    )
    known = options.parse_known_args()[0]
    names = known.trackers.split(",")
    if unknown := set(names) - TABLES.keys():
        options.error(f"--trackers {','.join(sorted(unknown))}: unknown; valid: {','.join(TABLES)}")
    parts = {name: functools.partial(cost, name, env_steps=known.env_steps) for name in names}
    print_table(__doc__, parts, options)


if __name__ == "__main__":
    main()
