"""Pictures of trained policies: previews and videos when all training is over (the keys ``preview``
and ``video`` of jobs), and all robots in one video (``play --all``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.experiment.beside_run import BesideRun, RunFacts
    from orchestrator.experiment.processes.policy_process import PlayRequest


def _beside_run(_: RunFacts) -> BesideRun:
    from orchestrator.features.pictures.after_run import PicturesAfterRun

    return PicturesAfterRun()


def _play_all(
    run_dir: Path, request: PlayRequest, as_gif: bool, report: Callable[[str], object]
) -> list[Path]:
    from orchestrator.features.pictures import mosaic

    return mosaic.make(run_dir, request, as_gif=as_gif, report=report)


FEATURE = Feature(
    name="pictures",
    about="Previews and videos of policies after a run, and `play --all`: all robots in one video.",
    beside_run=_beside_run,
    play_all=_play_all,
)
