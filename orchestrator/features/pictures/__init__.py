"""Pictures of trained policies: previews and videos when all training is over (the keys ``preview``
and ``video`` of jobs), and all robots in one video (``play --all``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.experiment.policy_process import PlayRequest
    from orchestrator.server.companions import Companion, RunFacts


def _companions(run: RunFacts) -> Iterable[Companion]:
    """Return the process that makes the pictures, if a job wants some."""
    without = run.ledger.jobs_with("preview", is_set=False)
    is_wanted = run.ledger.jobs_with("video", is_set=True) or without < set(run.ledger.wanted())
    if run.experiment is not None:
        examples = run.experiment.jobs_to_examine
        is_wanted = is_wanted or any(job.spec.preview or job.spec.video for job in examples)
    if not (is_wanted and run.is_listed):
        return []
    from orchestrator.server.companions import Companion

    return [
        Companion(
            name="pictures",
            module="orchestrator.features.pictures.after_run",
            log=run.paths.root / "pictures.log",
            kind="at end",
        )
    ]


def _play_all(
    run_dir: Path, request: PlayRequest, as_gif: bool, report: Callable[[str], object]
) -> list[Path]:
    from orchestrator.features.pictures import mosaic

    return mosaic.make(run_dir, request, as_gif=as_gif, report=report)


FEATURE = Feature(
    name="pictures",
    about="Previews and videos of policies after a run, and `play --all`: all robots in one video.",
    companions=_companions,
    play_all=_play_all,
)
