"""``python -m orchestrator.worker JOB_DIR NUMBER``: attempt NUMBER of the job in JOB_DIR.

The order matters: tied to the supervisor before anything heavy is imported, threads
limited before the libraries that read the limits are. Whatever happens is written to ``exit.json`` and told by
the exit code (:class:`orchestrator.core.exit_codes.ExitCode`).
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from orchestrator.core.atomic_files import write_whole
from orchestrator.core.environment import RANK_VARIABLE, SEARCH_PATH_VARIABLE, worker_thread_settings
from orchestrator.core.exit_codes import ExitCode
from orchestrator.core.messages import ExitRecord
from orchestrator.core.paths import JobPaths
from orchestrator.core.worker_spec import WorkerSpec
from orchestrator.worker.runtime import lifeline, outcome, startup
from orchestrator.worker.runtime.progress import ProgressReporter


class LeaveRequest:
    """Set by SIGTERM (or Ctrl-C, when started by hand): leave at the next iteration boundary."""

    def __init__(self) -> None:
        self._asked = False

    def __call__(self) -> bool:
        return self._asked

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True


def main(arguments: list[str]) -> NoReturn:
    channel = lifeline.attach()
    # Until there is something to save SIGTERM simply ends us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # "logs -f" sees what is printed
    if len(arguments) != 2 or not arguments[1].isdigit():
        sys.exit("usage: python -m orchestrator.worker JOB_DIR NUMBER")
    paths = JobPaths(Path(arguments[0]))
    number = int(arguments[1])
    files = paths.attempt(number)
    exit_path = files.exit_of(int(os.environ.get(RANK_VARIABLE, "0")))
    facts = outcome.Facts(started=lifeline.process_start())
    try:
        exit_path.parent.mkdir(parents=True, exist_ok=True)
        attempt(paths, number, facts, channel)
        record = facts.record(ExitCode.SUCCEEDED)
    except BaseException as error:  # SystemExit of the user's code included: every end has its record
        code, message, trace = outcome.judge(error)
        record = facts.record(code, message, trace)
    leave(record, exit_path)


def attempt(paths: JobPaths, number: int, facts: outcome.Facts, channel: lifeline.Channel | None) -> None:
    """The whole attempt, from reading the spec on. Ends with an exception where it does not succeed."""
    still_ours = functools.partial(lifeline.end_superseded, paths.attempt(number + 1).root)
    reporter = ProgressReporter(channel, each_time=still_ours)
    reporter.report("starting", 0)
    spec = WorkerSpec.from_json(paths.spec.read_text(encoding="utf-8"))
    os.environ.update(worker_thread_settings(spec.threads))  # not left to the surroundings: they decide bits

    with startup.imports():
        with startup.meta_kernels_later():
            import torch

        from orchestrator.worker.training import train

        if startup.runs_code_of_others(spec):
            startup.load_meta_kernels()
    startup.keep_dynamo_out()
    startup.release_library_pages()
    torch.set_num_threads(spec.threads)
    torch.set_num_interop_threads(1)
    facts.import_s = facts.age_s()

    if spec.search_path is not None:  # only now: a user's random.py is not to be found by torch
        sys.path.insert(0, os.environ.pop(SEARCH_PATH_VARIABLE, spec.search_path))
    request = LeaveRequest()
    request.listen()
    train.run(spec, paths, facts, reporter, request, paths.attempt(number).rendezvous, still_ours)


def leave(record: ExitRecord, exit_path: Path) -> NoReturn:
    """Write ``exit.json`` and end the process with the record's code, whatever else fails.

    ``os._exit``: the interpreter's own way out may hang on threads and children of the user's, and
    replaces the code by its own when the last flush meets a full disk.
    """
    code = record.code
    try:
        write_whole(exit_path, record.to_json())
        if record.traceback:
            print(record.traceback, file=sys.stderr)
        if record.message:
            print(f"worker: {record.message}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        if outcome.is_disk_full(error):
            code = ExitCode.DISK_FULL
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
