"""The executor ``slurm``: attempts run in pilots, which are batch jobs of Slurm."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from typing import Any

from orchestrator.core.errors import Problem, UsageError
from orchestrator.core.front_end import option
from orchestrator.core.job import Job
from orchestrator.core.text import count, joined
from orchestrator.executors.executor import ExecutorSettings, Report, resource_problem
from orchestrator.executors.slotted import SlottedExecutor
from orchestrator.features.slurm import handover
from orchestrator.features.slurm.allocation import SLURM_PROGRAMS
from orchestrator.features.slurm.batch_script import batch_script, job_name
from orchestrator.features.slurm.pilot_registry import PilotRegistry
from orchestrator.features.slurm.pilot_slots import PilotSlots
from orchestrator.features.slurm.session_file import FOLDER
from orchestrator.features.slurm.slurm_launcher import SlurmLauncher
from orchestrator.features.slurm.slurm_settings import SlurmSettings
from orchestrator.features.slurm.submission import BatchQueue

GPU_OPTIONS = {"gres", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task"}
"""Options of sbatch that give a pilot GPUs as well."""


class SlurmExecutor(SlottedExecutor):
    """See :class:`orchestrator.executors.executor.OpenedExecutor`. Pilots are submitted when the first job
    waits for room.

    :raises UsageError: Slurm's commands are missing, or sbatch cannot take the run directory's
        name.
    """

    def __init__(self, settings: ExecutorSettings) -> None:
        if missing := [program for program in SLURM_PROGRAMS if shutil.which(program) is None]:
            other = f"name another {option('executor')}"
            advice = f"run this command where they are, on a login node, or {other}"
            raise UsageError(
                f"{option('executor', 'slurm')}: {joined(missing)} not found; {advice}"
            )
        run_dir = settings.run_dir.absolute()
        if set(str(run_dir)) & set("\n\\"):
            advice = "choose a run directory whose path has neither a line break nor a backslash"
            raise UsageError(f"{settings.run_dir}: sbatch cannot write logs there; {advice}")
        self._settings: SlurmSettings = settings.tables.get("slurm") or SlurmSettings()
        self._folder = run_dir / FOLDER
        self._session = secrets.token_hex(4)
        self._queue = BatchQueue(
            name=job_name(settings.name, run_dir),
            folder=self._folder,
            pilots=self._settings.array,
            script=self._script,
        )
        slots = PilotSlots(settings.max_parallel_on_nodes)
        cores = self._settings.cpus_per_task or 1
        slots.expected_cores = self._settings.array * cores
        self._pilots = PilotRegistry(
            folder=self._folder / self._session, queue=self._queue, slots=slots, cores=cores
        )
        super().__init__(slots, SlurmLauncher(pilots=self._pilots))
        # The pilots of a plan are those of another supervisor, or of none.
        self._pilots.is_closed = settings.plan_dir is not None

    def _script(self, pilots: int) -> str:
        return batch_script(
            self._settings, name=self._queue.name, folder=self._folder, pilots=pilots
        )

    def ready(self, report: Report) -> None:
        if self._pilots.is_closed:
            return
        self._queue.report_to(report)
        try:
            warnings = handover.begin_session(self._folder, self._session, self._queue)
        except OSError as error:
            raise UsageError(
                f"{self._folder}: cannot be written ({error.strerror}); correct that"
            ) from error
        for warning in warnings:
            report("warning", warning)

    def problems(self, job: Job) -> list[Problem]:
        asked = job.resources
        settings = self._settings
        found: list[Problem] = []

        def refuse(key: str, what: str, limit: str, name: str) -> None:
            offered = f"a pilot has {limit}, as {name} in [slurm] says; raise that"
            found.append(resource_problem(job, f".{key}", what, offered))

        if settings.cpus_per_task is not None and asked.all_cores > settings.cpus_per_task:
            refuse(
                "cores", count(asked.cores, "core"), str(settings.cpus_per_task), "cpus_per_task"
            )
        if settings.mem_mib is not None and asked.all_memory_mib > settings.mem_mib:
            refuse("memory", f"{asked.memory_mib} MiB", f"{settings.mem_mib} MiB", "mem")
        if self._gpus is not None and asked.all_gpus > self._gpus:
            refuse("gpus", count(asked.gpus, "GPU"), str(self._gpus), "gpus")
        return found

    @property
    def _gpus(self) -> int | None:
        """GPUs of a pilot; None: not known here."""
        if GPU_OPTIONS & self._settings.options.keys():
            return None
        return self._settings.gpus

    def facts(self) -> Mapping[str, Any]:
        return {
            "executor": "slurm",
            "pilots": self._settings.array,
            "script": self._script(self._settings.array),
        }
