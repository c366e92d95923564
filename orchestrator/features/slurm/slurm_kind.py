"""What ``--executor slurm`` stands for. Nothing else of the feature is imported before it is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.executors.kinds import ExecutorKind, LeftBatchJobs
from orchestrator.features.slurm.session_file import FOLDER

if TYPE_CHECKING:
    from orchestrator.executors.executor import ExecutorSettings, OpenedExecutor


class LeftPilots:
    """See :class:`orchestrator.executors.kinds.BatchJobs`."""

    def were_used(self, run_dir: Path) -> bool:
        try:
            return (run_dir / FOLDER / "session.json").exists()
        except OSError:  # whoever reads the run directory is told so
            return False

    def left(self, run_dirs: Collection[Path]) -> Mapping[Path, LeftBatchJobs]:
        from orchestrator.features.slurm.left_pilots import left_pilots

        run_dir_of = {run_dir / FOLDER: run_dir for run_dir in run_dirs}
        return {run_dir_of[folder]: left for folder, left in left_pilots(run_dir_of).items()}

    def left_by_files(self, run_dir: Path) -> LeftBatchJobs | None:
        from orchestrator.features.slurm.left_pilots import named_by_files

        return named_by_files(run_dir / FOLDER)

    def end(self, run_dir: Path) -> str | None:
        from orchestrator.features.slurm.left_pilots import end_left_pilots

        return end_left_pilots(run_dir / FOLDER)

    def wait(self, run_dir: Path) -> None:
        from orchestrator.features.slurm.left_pilots import wait_for_pilots

        wait_for_pilots(run_dir / FOLDER)


def _open(settings: ExecutorSettings) -> OpenedExecutor:
    from orchestrator.features.slurm.slurm_executor import SlurmExecutor

    return SlurmExecutor(settings)


KIND = ExecutorKind(name="slurm", open=_open, batch_jobs=LeftPilots())
