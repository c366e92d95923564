"""The columns of ``progress.csv``; ``test_algorithms.py`` has those of the other algorithms."""

from __future__ import annotations

from pathlib import Path

import worker_helpers as helpers

from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.progress_columns import progress_columns

OF_MACHINE = {"time/fps", "time/time_elapsed", "time/iterations", "time/episodes"}


def test_ppo_fills_the_columns_that_conditions_may_name(tmp_path: Path) -> None:
    paths = helpers.job(tmp_path, helpers.spec(env="Hopper-v5", total_timesteps=1024))
    record, log = helpers.train_here(paths)
    assert record.code == ExitCode.SUCCEEDED, log
    last = helpers.rows(paths.progress_csv)[-1]
    filled = {name for name, cell in last.items() if cell}
    assert filled - OF_MACHINE == set(progress_columns("ppo"))
