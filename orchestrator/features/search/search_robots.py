"""The robot of a search as it was when the search began, beside what is declared: others are not
compared with it.

The content of a robot is that of all of its files before ``model_edits``. Of a function that makes
robots, it is what that makes in the middle and in a corner of the space.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.files.temporary_folder import TemporaryFolder
from orchestrator.core.front_end import repeat_call
from orchestrator.examination import preflight
from orchestrator.examination.preflight import JobVerdict
from orchestrator.features.search.declaration.written import start_over_by
from orchestrator.jobfile import Experiment
from orchestrator.server.decide import on_change_option


def advice() -> str:
    """What to do where the robot has changed."""
    return f"put it back, and {repeat_call()}. {start_over_by(on_change_option('restart'))}"


def contents(experiment: Experiment, verdicts: Mapping[str, JobVerdict]) -> dict[str, str]:
    """SHA-256 of the robots of the middle and of the corner of the space, by ``job_id``, as far as
    they could be read.

    Empty without a search.
    """
    if not experiment.makes_jobs:
        return {}
    hashes = {job.job_id: verdicts[job.job_id].source_hash for job in experiment.jobs_to_examine}
    return {job_id: content for job_id, content in hashes.items() if content is not None}


def recorded_robots(declaration: Mapping[str, Any]) -> dict[str, str]:
    """The same from a run directory's ``declaration``."""
    return dict(declaration["robots"])


def difference(before: Mapping[str, str], now: Mapping[str, str], experiment: Experiment) -> str:
    """A line that names the robot if it has changed; otherwise empty."""
    if all(before[job_id] == now[job_id] for job_id in before.keys() & now.keys()):
        return ""
    middle = experiment.jobs_to_examine[0]
    return change_text(experiment.shown_xml(middle) or middle.spec.robot_maker or middle.spec.task)


def change_text(robot: object) -> str:
    return f"robot: the contents of {robot} changed"


def is_another(before: Mapping[str, str], experiment: Experiment) -> bool:
    """Whether the robot that ``experiment`` names has changed; it is examined for that."""
    if not before or not experiment.makes_jobs:
        return False
    with TemporaryFolder() as folder:
        verdicts = preflight.examine(experiment.jobs_to_examine, staging=Path(folder), processes=1)
    return bool(difference(before, contents(experiment, verdicts), experiment))
