"""Ray's share of the driver's time, per batch of a stream and for waiting on many streams; for
scale.py."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from typing import Any

from benchmarks.node_streams import ROW
from benchmarks.simulated_experiment import resident_mib
from orchestrator.core.messages import Progress
from orchestrator.executors.base import Handle, Progressed
from orchestrator.features.ray.file_sync.chunks import Appended, Payload
from orchestrator.features.ray.node_attempt import Batch

READ = 2000
"""Number of batches."""
LOOKS = 20


def _talk() -> Any:
    event = Progressed(
        Handle("away", 0), Progress(phase="training", env_steps=1000, env_steps_per_s=1000.0)
    )
    chunk = Appended(path="progress.csv", offset=0, payload=Payload.of(ROW.encode(), compress=True))
    while True:
        yield Batch(events=(event,), chunks=(chunk, chunk))


def measure(streams: int) -> dict[str, Any]:
    """Measure with a separate Ray. ``streams`` tasks never run; two send as fast as they are
    read."""
    os.environ["RAY_AUTH_MODE"] = "disabled"  # it exists for a moment, on the loopback interface
    import ray

    with tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
            logging_level=logging.ERROR,
        )
        try:
            task: Any = ray.remote(_talk)
            options = {
                "num_returns": "streaming",
                "max_retries": 0,
                "_generator_backpressure_num_objects": 64,
            }
            talking = [task.options(num_cpus=1, **options).remote() for _ in range(2)]
            for stream in talking:
                ray.get(next(stream))
            begun_s = time.process_time()
            for number in range(READ):
                ray.get(next(talking[number % 2]))
            read_s = time.process_time() - begun_s
            mib = resident_mib()
            silent = [task.options(num_cpus=1, **options).remote() for _ in range(streams)]
            begun_s = time.process_time()
            for _ in range(LOOKS):
                ray.wait(silent, num_returns=len(silent), timeout=0)
            looked_s = time.process_time() - begun_s
        finally:
            ray.shutdown()
    return {
        "streams": streams,
        "mib": mib,
        "batch_cpu_us": 1e6 * read_s / READ,
        "look_cpu_us": 1e6 * looked_s / LOOKS,
    }
