"""Files of trackers in a run directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

from orchestrator.core.paths import JobPaths


def log(run_dir: Path) -> Path:
    """Output of the process that tells trackers of the jobs, and of their packages."""
    return run_dir / "track/track.log"


def tensorboard(run_dir: Path) -> Path:
    """TensorBoard's event files, a folder for each job."""
    return run_dir / "tensorboard"


def position_file(job: JobPaths, backend: str, destination: str) -> Path:
    """What a tracker has been told of a job, at one of the places to which it can send."""
    place = hashlib.sha256(destination.encode()).hexdigest()[:12]
    return job.root / "track" / f"{backend}-{place}.json"
