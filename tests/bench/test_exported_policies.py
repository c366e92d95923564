"""``benchmarks.exported_policies`` on a finished experiment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_helpers import Experiment

from benchmarks import exported_policies

pytestmark = pytest.mark.nightly


def test_every_format_of_an_evaluated_job_is_compared_with_it(
    finished_once: Experiment, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(finished_once.run_dir, tmp_path / "run")
    (run_dir / "jobs/hopper-s0/eval.json").unlink()
    rows = list(exported_policies.compare(run_dir, observations=100))
    assert {row.job for row in rows} == {"balancer-s0"}, "the hopper has no evaluation"
    assert {row.format for row in rows} == {"onnx", "npz"}
    assert all(row.difference <= 1e-6 for row in rows)
    text = exported_policies.table(rows)
    assert text.startswith("| policy | algorithm | `.onnx` |")
    assert "| balancer-s0 | PPO |" in text
