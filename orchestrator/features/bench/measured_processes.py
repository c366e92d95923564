"""The processes of one measurement: how they are started, what they report, why they ended, and how
they are killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.analysis import run_reader
from orchestrator.core.exit_record import read_exit_record
from orchestrator.core.paths import JobPaths, RunPaths
from orchestrator.core.processes.child_process import end_group, spawn, working_directory
from orchestrator.core.processes.procfs import is_running
from orchestrator.core.text import last_line
from orchestrator.features.bench.supervised_jobs import GRACE_S
from orchestrator.ledger import SummaryRow
from orchestrator.machine.process_tree import with_descendants


@dataclass(slots=True, kw_only=True)
class MeasuredProcesses:
    popens: Sequence[subprocess.Popen[bytes]]
    jobs: Mapping[str, JobPaths]
    run_dir: Path | None
    """The supervisor's run directory; None for the baselines without one."""
    log: Path
    launched_at: float

    def why_ended(self) -> str:
        """Why the measurement cannot continue, in one line; empty while it can."""
        for job_id, paths in self.jobs.items():
            # Before the exit record, which a process that has ended in order has written by then.
            pid = start_facts(paths).get("pid")
            is_gone = pid is not None and not is_running(pid)
            if (record := read_exit_record(paths.attempt(0).exit)) is not None:
                return f"{job_id}: {record.message or 'the process ended'}"
            if is_gone:  # a Pool replaces the process and waits for ever
                return f"{job_id}: its process was killed, perhaps because memory ran out"
        for row in self.summary_rows():
            if row["state"] == "FAILED":
                return f"{row['job_id']}: {row['message']}"
        codes = [code for popen in self.popens if (code := popen.poll()) is not None]
        output = self.log.read_text(errors="replace") if codes else ""
        return last_line(output, f"a process ended with exit code {codes[0]}") if codes else ""

    def summary_rows(self) -> list[SummaryRow]:
        """The supervisor's ``summary.json``; empty without a supervisor, and until the file is
        there.
        """
        if self.run_dir is None:
            return []
        return run_reader.read_json(RunPaths(self.run_dir).summary_json) or []

    def affinities(self) -> dict[str, list[int]]:
        """``job_id`` → the CPUs that its process may run on, as the kernel reports them."""
        pids: dict[str, int | None] = {
            job_id: start_facts(paths).get("pid") for job_id, paths in self.jobs.items()
        }
        pids |= {row["job_id"]: row["pid"] for row in self.summary_rows()}
        affinities = {}
        for job_id, pid in pids.items():
            if pid:
                with contextlib.suppress(OSError):  # it has ended
                    affinities[job_id] = sorted(os.sched_getaffinity(pid))
        return affinities

    def pids(self) -> list[int]:
        """All processes that were started, with their descendants."""
        return [pid for popen in self.popens for pid in with_descendants(popen.pid)]

    def stop(self) -> None:
        """End all processes. Supervised workers may finish their iteration and write their exit
        record.
        """
        if self.run_dir is not None and self.popens[0].poll() is None:
            self.popens[0].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed below
                self.popens[0].wait(GRACE_S * 2)
        self.kill()

    def kill(self) -> None:
        for popen in self.popens:
            end_group(popen)


def start(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    cpus: Collection[int] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with its output in ``log``.

    :param cpus: CPUs to which the process and its children are confined; None: no affinity is set.
    """
    with log.open("ab") as out:
        return spawn(
            command,
            folder=working_directory(log.parent),
            environment=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            cpus=cpus,
        )


def start_facts(paths: JobPaths) -> dict[str, Any]:
    """What a process reports of its start: in ``begun.json``, or, under a supervisor, in its exit
    record.
    """
    for path in (paths.begun, paths.attempt(0).exit):
        if (facts := run_reader.read_json_object(path)) is not None:
            return facts
    return {}
