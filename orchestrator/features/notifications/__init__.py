"""Programs of the user that are run when a job has failed and at the end: the table ``[notify]``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.experiment.beside_run import BesideRun, RunFacts
    from orchestrator.keys.feature_tables import FeatureTable


def _job_file() -> Iterable[FeatureTable]:
    from orchestrator.features.notifications.notify_table import TABLE

    return [TABLE]


def _beside_run(run: RunFacts) -> BesideRun | None:
    notify = run.experiment.tables.get("notify")
    if notify is None or not notify.commands:
        return None
    from orchestrator.features.notifications.notify_programs import NotifyPrograms

    return NotifyPrograms(notify=notify, run=run)


FEATURE = Feature(
    name="notifications",
    about="The table [notify]: programs that are started when a job fails and when the run ends.",
    job_file=_job_file,
    beside_run=_beside_run,
)
