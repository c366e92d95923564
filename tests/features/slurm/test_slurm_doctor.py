"""What `doctor` says of Slurm."""

from __future__ import annotations

import time
from pathlib import Path

from measurement_helpers import machine_with

from orchestrator.features.slurm.allocation import SLURM_PROGRAMS
from orchestrator.features.slurm.slurm_doctor import findings


def test_the_allocation_of_slurm_is_shown_and_what_it_does_not_bind() -> None:
    variables = {
        **{
            "SLURM_JOB_ID": "15",
            "SLURM_ARRAY_JOB_ID": "12",
            "SLURM_ARRAY_TASK_ID": "3",
            "SLURMD_NODENAME": "node7",
        },
        **{
            "SLURM_CPUS_ON_NODE": "2",
            "SLURM_MEM_PER_NODE": "4096",
            "SLURM_JOB_END_TIME": str(int(time.time()) + 7200),
        },
    }
    (finding,) = findings(machine_with(2), variables)
    assert finding.detail == "job 12_3 on node7: 2 cores, 4096 MiB, 0 GPUs, 2.0 h left."
    shown, warning = findings(machine_with(8), variables)
    assert (shown.level, warning.level) == ("ok", "warning")
    assert "lets processes use 8" in warning.detail
    assert "--max-parallel 2" in warning.cure


def test_outside_of_an_allocation_the_commands_of_slurm_are_looked_for(tmp_path: Path) -> None:
    (finding,) = findings(machine_with(2), {"PATH": str(tmp_path)})
    assert "sbatch, squeue and scancel not on PATH" in finding.detail
    for name in SLURM_PROGRAMS:
        (tmp_path / name).touch(mode=0o755)
    (finding,) = findings(machine_with(2), {"PATH": str(tmp_path)})
    assert "--executor slurm" in finding.detail
