"""Overhead of a cluster: the same jobs on this machine with the local executor, with Ray's, and
with Ray Tune.

    python -m benchmarks.executors [--repeats 3]

Eight trainings of Ant-v5 of 10,240 env_steps by stock PPO on as many cores as there are. *Makespan*
is the time from the submission of the first job to the end of the last one; the cluster, of this
machine alone, is started before. Tune trains the same with PPO in its own functions, with one core
and one thread each; its line is left out where ``ray[tune]`` is not installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Line, at_least, at_most, both_ways, print_table
from benchmarks.makespan import JOBS, STEPS, job_file, makespan_s
from orchestrator.core.processes.environment_variables import worker_thread_settings
from orchestrator.machine import topology

MOST_OF_LOCAL = 1.15
MOST_OF_TUNE = 0.8

TUNE = """
import sys, time
from ray import tune
import ray

def train(config):
    import torch
    torch.set_num_threads(1)
    from stable_baselines3 import PPO
    PPO("MlpPolicy", "Ant-v5", seed=config["seed"], device="cpu").learn({steps})

ray.init(num_cpus={cores}, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
ray.get(ray.remote(lambda: None).remote())  # the cluster is up
began = time.monotonic()
tune.run(train, config={{"seed": tune.grid_search(list(range({jobs})))}}, resources_per_trial={{"cpu": 1}}, verbose=0)
print("makespan", time.monotonic() - began)
"""


@contextmanager
def cluster() -> Iterator[str]:
    """Start Ray on this machine alone. Yields its address."""
    from orchestrator.features.ray.connection import LOCAL, connect

    connection = connect(LOCAL, topology.detect())
    import ray  # only now: it reads the environment when it is imported

    try:
        ray.get(ray.remote(lambda: None).remote())
        yield connection.head
    finally:
        connection.close()


def tune_s(cores: int) -> float | None:
    """Makespan with Ray Tune; None where it is not installed."""
    text = TUNE.format(steps=STEPS, jobs=JOBS, cores=cores)
    environment = {**os.environ, **worker_thread_settings(1)}
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    if "ray[tune]" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"Ray Tune:\n{done.stderr[-2000:]}")
    return float(done.stdout.split("makespan")[1].split()[0])


def makespan(repeats: int) -> list[Line]:
    cores = topology.detect().capacity
    of_local = []
    of_tune = []
    seconds_by: dict[str, list[float]] = {"local": [], "ray": [], "tune": []}
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        file = job_file(Path(folder))

        def by_ray() -> float:
            with cluster() as address:
                return makespan_s(file, "--executor", "ray", "--ray-address", address)

        for number in range(repeats):
            ways: Any = (
                ("local", lambda: makespan_s(file)),
                ("ray", by_ray),
                ("tune", lambda: tune_s(cores)),
            )
            for name, way in both_ways(number, *ways):
                if (seconds := way()) is not None:
                    seconds_by[name].append(seconds)
            of_local.append(seconds_by["ray"][-1] / seconds_by["local"][-1])
            if seconds_by["tune"]:
                of_tune.append(seconds_by["ray"][-1] / seconds_by["tune"][-1])
    what = f"{JOBS} trainings of Ant-v5, {STEPS:,} env_steps, {cores} at once: makespan of --executor ray"
    lines = [at_most(f"{what} / of --executor local", of_local, MOST_OF_LOCAL)]
    if of_tune:
        lines.append(at_most(f"{what} / of Ray Tune", of_tune, MOST_OF_TUNE))
    lines += [
        at_least(f"seconds by {name}", values) for name, values in seconds_by.items() if values
    ]
    return lines


if __name__ == "__main__":
    print_table(__doc__, {"makespan": makespan})
