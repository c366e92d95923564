"""The table ``[track]``: experiment trackers (TensorBoard, W&B, MLflow), told from the run directory
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.keys.feature_tables import FeatureTable
    from orchestrator.server.companions import Companion, RunFacts


def _job_file() -> Iterable[FeatureTable]:
    from orchestrator.features.tracking.track_settings import TABLE

    return [TABLE]


def _companions(run: RunFacts) -> Iterable[Companion]:
    trackers = run.tables.get("track")
    if not trackers:
        return []
    from orchestrator.features.tracking import files, process_arguments
    from orchestrator.server.companions import Companion

    return [
        Companion(
            name="trackers",
            kind="beside",
            module="orchestrator.features.tracking",
            arguments=[process_arguments.settings(run.name, trackers)],
            log=files.log(run.paths.root),
            patience_s=process_arguments.TIME_LIMIT_S + 5.0,
        )
    ]


FEATURE = Feature(
    name="tracking",
    about="The table [track]: TensorBoard, W&B and MLflow are told of jobs.",
    job_file=_job_file,
    companions=_companions,
)
