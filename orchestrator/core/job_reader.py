"""Reading a job's directory, for those who use its policy elsewhere."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.errors import UsageError
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.files.regular_files import read_regular
from orchestrator.core.front_end import option
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import WorkerSpec

JOBS_NAMED = 5
"""Jobs that a message lists."""


def read_job(root: Path) -> tuple[JobPaths, WorkerSpec]:
    """Paths and specification of the job in ``root``.

    :raises UsageError: it is not the directory of a job that has been launched, or its robot is
        missing.
    """
    paths = JobPaths(root)
    try:
        spec = WorkerSpec.from_json(read_regular(paths.spec))
    except OSError as error:
        problem = f"spec.json, which is written when a job is launched: {error.strerror or error}"
        if jobs := sorted(path.name for path in RunPaths(root).jobs.glob("*") if path.is_dir()):
            problem = f"this is a run directory, with the jobs {listed(jobs, JOBS_NAMED)}"
        raise UsageError(
            f"{root}: {problem}; expected a job's directory: RUN_DIR/jobs/JOB_ID"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{paths.spec}: cannot be read ({error}); another version of this program, or a feature "
            "that is not installed, may have written it"
        ) from error
    if spec.xml is not None and not (root / spec.xml).is_file():
        again = option("on_change", "restart", sign="=")
        advice = f"restore it, or run the job file again with {again}"
        raise UsageError(f"{root / spec.xml}: the job's own copy of the robot is missing; {advice}")
    return paths, spec


def outcome_sentence(paths: JobPaths) -> str:
    """A sentence on how the last attempt of a job ended, as far as its directory says, without its
    full stop.
    """
    numbers = [int(path.name) for path in paths.attempts.glob("*") if path.name.isdecimal()]
    record = read_exit_record(paths.attempt(max(numbers)).exit) if numbers else None
    if record is None:
        return "Its last attempt has left no exit record: it is running, or it was killed"
    if record.code == ExitCode.INTERRUPTED:
        return "Its training was interrupted; `run` resumes it"
    if record.code == ExitCode.PAUSED:
        return f"Its training is paused: {record.message}"
    if record.code != ExitCode.SUCCEEDED:
        return f"Its training failed: {record.message}"
    return "Its last attempt succeeded"
