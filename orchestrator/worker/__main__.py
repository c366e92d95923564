"""``python -m orchestrator.worker JOB_DIR NUMBER`` runs attempt NUMBER of the job in JOB_DIR.

The order matters: the process is tied to its supervisor and waits for its word before anything
heavy is imported, so that it imports on its own CPUs. Thread counts are set before the libraries
that read them are imported. However the attempt ends, ``exit.json`` and the exit code
(:class:`orchestrator.core.exit_codes.ExitCode`) say how.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from orchestrator.core.errors import is_disk_full
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.exit_record import ExitRecord
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.paths import JobPaths
from orchestrator.core.processes.environment_variables import (
    FORKED,
    RANK_VARIABLE,
    SEARCH_PATH_VARIABLE,
    START_VARIABLE,
    worker_thread_settings,
)
from orchestrator.core.processes.process_setup import block_checkpoint_signal
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.runtime import failures, import_speed, niceness, supervisor_connection
from orchestrator.worker.runtime.attempt_facts import AttemptFacts
from orchestrator.worker.runtime.progress import ProgressReporter
from orchestrator.worker.runtime.signal_requests import SignalRequests


def main(arguments: list[str]) -> NoReturn:
    block_checkpoint_signal()
    channel = supervisor_connection.attach(awaits_go=True)
    # SIGTERM ends the process at once until there is something to save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    niceness.apply_to_session()
    faulthandler.enable()
    # "logs -f" sees what is printed, and a file name that is not UTF-8 can be printed.
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    job_dir, number_text = arguments
    paths = JobPaths(Path(job_dir))
    number = int(number_text)
    exit_path = paths.attempt(number).exit_of(int(os.environ.get(RANK_VARIABLE, "0")))
    how = os.environ.pop(START_VARIABLE, "")
    facts = AttemptFacts(
        started=supervisor_connection.process_start(),
        start="fork" if how == FORKED else "exec",
        why_exec="" if how == FORKED else how,
    )
    try:
        exit_path.parent.mkdir(parents=True, exist_ok=True)
        run_attempt(paths, number, facts, channel)
        record = facts.record(ExitCode.SUCCEEDED)
    # SystemExit of the user's code included: every end has its record.
    except BaseException as error:
        record = facts.record(*failures.classify(error))
    exit_with(record, exit_path)


def run_attempt(
    paths: JobPaths, number: int, facts: AttemptFacts, channel: supervisor_connection.Channel | None
) -> None:
    """Run the whole attempt, from reading its spec on. Raises if it does not succeed."""
    end_if_superseded = functools.partial(
        supervisor_connection.end_if_superseded, paths.attempt(number + 1).root
    )
    reporter = ProgressReporter(channel, facts, before_sending=end_if_superseded)
    reporter.report("starting", 0)
    spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
    os.environ.update(worker_thread_settings(spec.threads))  # not inherited: they decide bits

    with import_speed.fast_imports():
        import torch

        from orchestrator.worker.runtime import sb3_internals
        from orchestrator.worker.training import train
    sb3_internals.keep_compiler_out()
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(1)
    facts.import_s = facts.age_s()

    if spec.search_path is not None:  # only now, so that torch does not find a user's random.py
        sys.path.insert(0, os.environ.pop(SEARCH_PATH_VARIABLE, spec.search_path))
    requests = SignalRequests()
    train.run(
        spec,
        paths,
        facts,
        reporter,
        stop_requested=requests.is_stop_requested,
        rendezvous=paths.attempt(number).rendezvous,
        before_writing=end_if_superseded,
        checkpoint_requested=requests.take_checkpoint_request,
    )


def exit_with(record: ExitRecord, exit_path: Path) -> NoReturn:
    """Write ``exit.json`` and end the process with the record's code, whatever else fails.

    By ``os._exit``: the interpreter's own way out may hang on threads and children of the user's
    code, and replaces the exit code by its own when the last flush meets a full disk.
    """
    code = record.code
    try:
        write_whole(exit_path, record.to_json())
    except OSError as error:  # the log says what the record cannot
        if is_disk_full(error):
            code = ExitCode.DISK_FULL
        record.message += f" ({exit_path}: cannot be written: {error.strerror or error})"
    with contextlib.suppress(OSError):  # of the log
        if record.traceback:
            print(record.traceback, file=sys.stderr)
        if record.message:
            print(f"worker: {record.message}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
