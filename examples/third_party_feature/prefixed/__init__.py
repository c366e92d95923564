"""``--executor prefixed``: every worker is started by another program, such as ``nice`` or ``env``.

Its table in the job file, or the option ``--prefix``, has the command::

    [prefixed]
    command = ["nice", "-n", "5"]
    events = true  # a line of JSON for each event, in RUN_DIR/events.jsonl

And a table of jobs, ``calm = { above = 100 }``: exploration ends once the mean return is above
that; ``status`` has a column that says since when. And a task, ``task = "prefixed.settle:Settle"``.

The program has to become the worker, by ``exec``, as all programs of this kind do: then the
worker's process is the one that the supervisor has started, with its CPUs, its limits and its
connection to the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.core.job_parts import JobPart
    from orchestrator.executors.kinds import ExecutorKind
    from orchestrator.keys.feature_tables import FeatureTable, JobTable
    from orchestrator.machine.doctor import Finding
    from orchestrator.machine.topology import Machine
    from orchestrator.server.companions import Companion, RunFacts


def _executors() -> Iterable[ExecutorKind]:
    from prefixed.executor import KIND

    return [KIND]


def _job_file() -> Iterable[FeatureTable]:
    from prefixed.settings import TABLE

    return [TABLE]


def _job_parts() -> Iterable[JobPart]:
    from prefixed.calm import PART

    return [PART]


def _job_tables() -> Iterable[JobTable]:
    from prefixed.calm_table import TABLE

    return [TABLE]


def _companions(run: RunFacts) -> Iterable[Companion]:
    settings = run.tables.get("prefixed")
    if settings is None or not settings.events:  # None: the run has no job file
        return []
    from orchestrator.server.companions import Companion

    return [
        Companion(
            name="event log",
            module="prefixed.event_log",
            arguments=[str(run.ledger.last_event_id())],
            log=run.paths.root / "event_log.log",
            kind="after",
            patience_s=5.0,
        )
    ]


def _doctor(machine: Machine) -> Iterable[Finding]:
    from prefixed.executor import findings

    return findings(machine)


FEATURE = Feature(
    name="prefixed",
    about="The executor prefixed: every worker is started by another program; calm for jobs.",
    executors=_executors,
    job_file=_job_file,
    job_parts=_job_parts,
    job_tables=_job_tables,
    companions=_companions,
    doctor=_doctor,
)
