"""``timings.csv``: every column real, the parts adding up; and tables that survive a resume."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.timing_columns import COLUMNS
from orchestrator.worker.runtime import resources
from orchestrator.worker.runtime.csv_tables import CsvTable

HYPERPARAMETERS = {"n_steps": 256, "batch_size": 64, "n_epochs": 4}


def test_phases_add_up_every_cell_is_filled_and_times_come_in_their_order(tmp_path: Path) -> None:
    changes = {"total_timesteps": 3072, "hyperparameters": HYPERPARAMETERS, "eval_episodes": 1}
    paths = helpers.job(
        tmp_path, helpers.spec(env="Hopper-v5", normalize=True, learner="fast", **changes)
    )
    record, log = helpers.run(
        paths
    )  # in a process of its own: here other threads take CPU time, too
    assert record.code == ExitCode.SUCCEEDED, log
    text = helpers.rows(paths.timings_csv)
    assert tuple(text[0]) == COLUMNS
    assert [row["env_steps"] for row in text] == [str(512 * number) for number in range(1, 7)]
    may_lack = set() if resources.totals()["throttled_s"] is not None else {"throttled_s"}
    for row in [
        {name: float(cell) for name, cell in row.items() if name not in may_lack} for row in text
    ]:
        assert row["rollout_s"] + row["train_s"] <= row["wall_s"]
        assert 0 < row["env_s"] + row["policy_s"] + row["gae_s"] <= row["rollout_s"]
        assert 0 < row["backward_s"] + row["optimizer_s"] <= row["train_s"]
        assert (
            min(row["env_s"], row["policy_s"], row["gae_s"], row["backward_s"], row["optimizer_s"])
            > 0
        )
        assert row["cpu_s"] <= row["wall_s"] * 1.05 + 0.01
        assert 100 < row["rss_mib"] < 1000
        assert row["n_cpus"] == len(os.sched_getaffinity(0))
    clocks = [float(row["clock_s"]) for row in text]
    for number in range(1, len(text)):
        assert clocks[number] - clocks[number - 1] >= float(text[number]["wall_s"]) - 0.001
    assert clocks[-1] < time.monotonic()
    total = {
        name: sum(float(row[name]) for row in text) for name in ("wall_s", "rollout_s", "train_s")
    }
    assert total["rollout_s"] + total["train_s"] == pytest.approx(total["wall_s"], rel=0.03)
    assert record.import_s is not None
    assert record.first_step_s is not None
    assert record.wall_s is not None
    assert total["wall_s"] < record.wall_s
    assert 0 < record.import_s < record.first_step_s < record.wall_s
    assert 0 < (record.checkpoint_s or 0) < record.wall_s
    assert 0 < (record.eval_s or 0) < record.wall_s


def test_table_is_cut_back_to_the_rows_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    table = CsvTable(path)
    table.append({"step": 1})
    table.append({"step": 2, "loss": 0.5})
    table.append({"step": 3, "loss": None})
    with path.open("a") as file:
        file.write("4,0.2")  # torn: the worker was killed while writing
    table = CsvTable(path, keep=2)
    assert table.rows == 2
    table.append({"loss": 0.25, "step": 3})
    assert path.read_text() == "step,loss\n1,\n2,0.5\n3,0.25\n"
