"""Sentences saying how a run directory goes on that no supervisor holds."""

from __future__ import annotations

import contextlib
import shlex

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import plain
from orchestrator.executors.kinds import LeftBatchJobs
from orchestrator.experiment import run_directory
from orchestrator.experiment.begun_source import begun_source
from orchestrator.machine import provenance


def how_to_resume(paths: RunPaths, left: LeftBatchJobs | None = None) -> str:
    """What resumes an interrupted run. Its executor is recorded, and need not be named.

    :param left: batch jobs that may still train it; then also what ends these.
    """
    if left is None:
        return f"{_capitalized(resuming_clause(paths))}."
    how = _command(paths) if has_declaration(paths) else _call(paths)
    goes_on = f"{how} takes over what runs, `stop {shlex.quote(str(paths.root))}` ends them."
    return f"{_capitalized(str(left))}: {goes_on}"


def resuming_clause(paths: RunPaths) -> str:
    """What resumes an interrupted run, as a clause."""
    if has_declaration(paths):
        return f"{_command(paths)} resumes it"
    recorded = provenance.resumed_by(paths)
    how = f"{_call(paths)} resumes it"
    if recorded is not None:
        how = plain(recorded).replace("{run_dir}", _argument(paths))
    return f"it was made by a Python program; {how}"


def _command(paths: RunPaths) -> str:
    return f"`run {shlex.quote(str(paths.root))}`"


def _call(paths: RunPaths) -> str:
    return f"the same call with {_argument(paths)}"


def _argument(paths: RunPaths) -> str:
    return f"run_dir={str(paths.root.absolute())!r}"


def _capitalized(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}"


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
