"""The command ``export``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer
from typer import Option

from orchestrator.commands import shared_options as shared
from orchestrator.commands.shared_options import Checkpoint, JobName, RunDir
from orchestrator.core.errors import UsageError

app = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Which policy to export, and to which file."""

    module: ClassVar[str] = "orchestrator.features.export.worker.job_export"
    to: Path
    checkpoint: str | None
    """env_steps of one of the job's checkpoints, ``latest``, or a file; None for the finished
    policy."""
    check: bool
    """Whether to run the file beside the policy."""

    def arguments(self) -> list[str]:
        """The command line arguments of :attr:`module`."""
        chosen = [] if self.checkpoint is None else [f"--checkpoint={self.checkpoint}"]
        checking = ["--check"] if self.check else []
        return [f"--to={self.to}", *chosen, *checking]


@app.command()
def export(
    run_dir: RunDir,
    job: JobName,
    to: Annotated[
        Path,
        Option(
            metavar="FILE.onnx|.npz|.h",
            help="The file to write: ONNX, NumPy or a C header. An earlier file is replaced.",
        ),
    ],
    checkpoint: Checkpoint = None,
    check: Annotated[
        bool,
        Option(
            "--check",
            help="Run the file beside the policy over an episode, and print the largest difference; not for .h.",
        ),
    ] = False,
) -> None:
    """Write a trained policy for other programs, such as a robot's controller: observations in,
    actions and ctrl out.

    Normalisation of observations is part of the file, and so are names, units and the control
    period.
    """
    from orchestrator.client import run_snapshot
    from orchestrator.experiment import policy_process

    if check and to.suffix == ".h":
        raise UsageError(
            f"--check: {to} would have to be compiled; check the same policy as .npz, and compile the header yourself"
        )
    with shared.interruptible("stopped"):
        paths = run_snapshot.find(run_dir, job)
        warning = policy_process.robot_warning(paths)
        if warning is not None:  # the file would have names and limits of another robot
            raise UsageError(f"{paths.root.name} cannot be exported: {warning}")
        policy_process.use(paths, ExportRequest(to=to, checkpoint=checkpoint, check=check))
