"""The table ``[track]``: experiment trackers (TensorBoard, W&B, MLflow), told from the run directory
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.experiment.beside_run import BesideRun, RunFacts
    from orchestrator.keys.feature_tables import FeatureTable


def _job_file() -> Iterable[FeatureTable]:
    from orchestrator.features.tracking.track_settings import TABLE

    return [TABLE]


def _beside_run(run: RunFacts) -> BesideRun | None:
    trackers = run.experiment.tables.get("track")
    if not trackers:
        return None
    from orchestrator.features.tracking.track_process import TrackProcess

    return TrackProcess(
        name=run.experiment.name, trackers=trackers, run_dir=run.run_dir, reporter=run.reporter
    )


FEATURE = Feature(
    name="tracking",
    about="The table [track]: TensorBoard, W&B and MLflow are told of jobs.",
    job_file=_job_file,
    beside_run=_beside_run,
)
