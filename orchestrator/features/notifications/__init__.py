"""Programs of the user that are run when a job has failed and at the end: the table ``[notify]``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.keys.feature_tables import FeatureTable
    from orchestrator.server.companions import Companion, RunFacts


def _job_file() -> Iterable[FeatureTable]:
    from orchestrator.features.notifications.notify_table import TABLE

    return [TABLE]


def _companions(run: RunFacts) -> Iterable[Companion]:
    notify = run.tables.get("notify")
    if notify is None or not notify.commands:
        return []
    from orchestrator.features.notifications import notify_programs

    return [notify_programs.companion(run, notify)]


FEATURE = Feature(
    name="notifications",
    about="The table [notify]: programs that are started when a job fails and when the run ends.",
    job_file=_job_file,
    companions=_companions,
)
