"""``benchmarks.contenders`` with the contenders that need no installation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly


def test_contenders_train_and_their_figures_are_written(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.contenders",
        "speed",
        "--only",
        "sb3,fast",
        "--repeats",
        "1",
    ]
    options = ["--robots", "HalfCheetah-v5", "--speed-steps", "4096", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "contenders.json").read_text(encoding="utf-8"))
    assert record["failures"] == []
    [round_] = record["rounds"]
    for training in round_["trainings"].values():
        assert (training["env_steps"], training["counted_env_steps"]) == (8192, 6144)
        assert training["env_steps_per_s"] > 0
        assert training["episodes"] == 8
        assert training["versions"]["torch"].startswith("2.")
    assert list(round_["trainings"]) == ["sb3", "fast"]
    assert (tmp_path / "contenders.md").read_text(encoding="utf-8") == done.stdout
