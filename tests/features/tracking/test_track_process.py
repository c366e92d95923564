"""The companion that tells trackers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_helpers import wait_until

from orchestrator.core.paths import RunPaths
from orchestrator.experiment.side_process import SideProcess
from orchestrator.features.tracking import files, process_arguments
from orchestrator.features.tracking.sending import JobRows
from orchestrator.ledger import Ledger
from orchestrator.server.companions import ALL_ENDED, DONE


@pytest.mark.nightly
def test_it_takes_little_cpu_time_and_ends_when_all_jobs_have_ended(tmp_path: Path) -> None:
    arguments = (
        "orchestrator.features.tracking",
        str(tmp_path),
        process_arguments.settings("robots", {}),
        "1",
    )
    process = SideProcess(arguments=arguments, run_dir=tmp_path, log=files.log(tmp_path))
    process.start()
    assert process._popen is not None
    pid = process._popen.pid
    wait_until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19, "the lowest priority")
    process.tell(ALL_ENDED)
    assert process._popen.wait() == DONE
    process.end()


def test_a_ledger_that_a_tracker_reads_is_one_file_when_the_run_has_ended(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    ledger, jobs = Ledger.create(paths.ledger), JobRows(paths)
    assert ledger.summary() == jobs.read() == jobs.read() == []
    ledger.close()
    assert list(tmp_path.iterdir()) == [paths.ledger]
