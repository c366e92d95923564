"""Jobs for runs on clusters, and what they leave."""

from __future__ import annotations

from pathlib import Path

import command_helpers as commands
from command_helpers import summary

SHORT = {"name": "short", "xml": commands.BALANCER, "task": "balance"}
LONG = {
    "name": "long",
    "entry_point": "odd:unhurried",
    "total_timesteps": 10_000_000,
    "checkpoint_every": 512,
}
"""Runs until it is stopped, and leaves the processors to other tests."""


def weights(run_dir: Path) -> dict[str, str]:
    return {job_id: row["weights_sha256"] for job_id, row in summary(run_dir).items()}
