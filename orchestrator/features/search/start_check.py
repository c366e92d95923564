"""Whether the unchanged job can be trained, and its policy be the start of the bodies of a space:
examined before anything is launched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.core.errors import Problem, SpecError
from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.job import Job
from orchestrator.core.worker_spec import INIT_JOB
from orchestrator.experiment.examination import preflight
from orchestrator.features.search.declaration import rules
from orchestrator.features.search.declaration.declared_search import (
    declaration_of,
    jobs_at,
    points_to_begin_with,
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
    bodies: dict[str, Job] = {}
    if search.start == "reference":
        init = f"{INIT_JOB}{reference.job_id}"
        bodies = {what: job.with_spec(init=init) for what, job in _bodies(experiment, search)}

    def watch(*_: int) -> None:
        turn()

    with TemporaryFolder() as folder:
        verdicts = preflight.examine(
            [reference, *bodies.values()],
            staging=Path(folder),
            processes=topology.detect(with_gpus=False).capacity,
            watch=watch,
        )
    where = rules.place_of_reference(search)
    own = verdicts[reference.job_id].problem
    if own is not None:
        return Problem(where=where, message=f"the unchanged job cannot be trained: {own.message}")
    for what, job in bodies.items():
        found = verdicts[job.job_id]
        if found.has_unfit_init and found.problem is not None:
            text = f"the policy of the unchanged job does not fit the body of {what}"
            advice = 'leave out of the space what changes its joints, sensors or actuators, or start = "nothing"'
            return Problem(where=where, message=f"{text}: {found.problem.message}; {advice}")
    return None


def _trains_reference(search: SearchSpec) -> bool:
    return search.start == "reference" or (search.reevaluate > 0 and search.reevaluation.reference)


def _bodies(experiment: Experiment, search: SearchSpec) -> Iterator[tuple[str, Job]]:
    """Bodies of the space that stand for all, as far as their values fit together."""
    points = {
        "the middle of the space": search.middle,
        "the corner of lowest values": search.corner,
        **{
            f"search.initial[{number}]": point
            for number, point in enumerate(points_to_begin_with(experiment))
        },
    }
    for number, (what, point) in enumerate(points.items()):
        with contextlib.suppress(SpecError):  # such a trial fails, with this reason
            yield what, jobs_at(experiment, f"body{number}", point)[0]
