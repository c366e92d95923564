"""Whether the unchanged job can be trained: examined before anything is launched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.core.errors import Problem
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.examination import preflight
from orchestrator.features.search.declaration import rules
from orchestrator.features.search.declaration.declared_search import (
    declaration_of,
    start_job,
)
from orchestrator.features.search.declaration.spec import SearchSpec
from orchestrator.jobfile import Experiment
from orchestrator.machine import topology


def problem(experiment: Experiment, turn: Callable[[], object]) -> Problem | None:
    """Why the unchanged job cannot be what the search declares it to be; None also where it
    declares nothing of it.
    """
    search = declaration_of(experiment).search
    if search is None or not _trains_reference(search):
        return None
    reference = start_job(experiment)

    def watch(*_: int) -> None:
        turn()

    with TemporaryFolder() as folder:
        verdicts = preflight.examine(
            [reference],
            staging=Path(folder),
            processes=topology.detect(with_gpus=False).capacity,
            watch=watch,
        )
    where = rules.place_of_reference(search)
    own = verdicts[reference.job_id].problem
    if own is not None:
        return Problem(where=where, message=f"the unchanged job cannot be trained: {own.message}")
    return None


def _trains_reference(search: SearchSpec) -> bool:
    return search.start == "reference" or (search.reevaluate > 0 and search.reevaluation.reference)
