"""Sentences saying how a run directory goes on that no supervisor holds."""

from __future__ import annotations

import contextlib
import shlex

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import plain
from orchestrator.executors.kinds import LeftBatchJobs
from orchestrator.experiment.begun_source import begun_source
from orchestrator.experiment.directory import run_directory
from orchestrator.machine import provenance


def how_to_resume(paths: RunPaths, left: LeftBatchJobs | None = None) -> str:
    """What resumes an interrupted run. Its executor is recorded, and need not be named.

    :param left: batch jobs that may still train it; then also what ends these.
    """
    run_dir = shlex.quote(str(paths.root))
    is_resumed_by_run = has_declaration(paths)
    command = f"`run {run_dir}`"
    given = f"run_dir={str(paths.root.absolute())!r}"
    call = f"the same call with {given}"
    if left is not None:
        clause = str(left)
        how = command if is_resumed_by_run else call
        goes_on = f"{how} takes over what runs, `stop {run_dir}` ends them."
        return f"{clause[0].upper()}{clause[1:]}: {goes_on}"
    if is_resumed_by_run:
        return f"{command} resumes it."
    recorded = provenance.resumed_by(paths)
    how = f"{call} resumes it" if recorded is None else plain(recorded).replace("{run_dir}", given)
    return f"It was made by a Python program; {how}."


def has_declaration(paths: RunPaths) -> bool:
    """Whether the run directory says itself what is run, so that `run` with its path resumes it: it
    has a job file, or a feature knows what has begun there.
    """
    if paths.experiment.exists():
        return True
    with contextlib.suppress(OrchestratorError):  # what cannot be read resumes nothing
        if paths.ledger.exists():
            with run_directory.reading_ledger(paths) as ledger:
                return begun_source(paths, ledger) is not None
    return False
