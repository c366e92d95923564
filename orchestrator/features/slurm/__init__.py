"""Attempts inside allocations of Slurm: one array of batch jobs, the pilots, each of which runs as
many as fit.

================== =================================================================================================
``slurm_kind``     what ``--executor slurm`` stands for
``slurm_table``    the table ``[slurm]``, key by key; ``slurm_settings``: what it means
``slurm_doctor``   what ``doctor`` says; ``allocation``: what Slurm gave the job that this process belongs to
``slurm_executor`` the executor ``slurm``, which combines the other modules
``slurm_launcher`` its launcher: attempts on pilots
``pilot_registry`` the pilots as they join, hand back and end; ``pilot_slots``: their room; ``handover``: those of an
                   earlier supervisor; ``left_pilots``: those of one that was killed
``submission``     their submission, and Slurm's own view of them: ``sbatch``, ``squeue`` and ``scancel`` by
                   ``command_runner``; ``batch_script`` is what is submitted
``accounting``     what Slurm's accounting says of the pilots
``pilot``          what runs in an allocation; ``pilot_attempts``: the attempts there
``mailbox``        how both sides talk, by files in the run directory; ``pilot_messages``: what they say;
                   ``session_file``: which supervisor is served
================== =================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.feature import Feature

if TYPE_CHECKING:
    from orchestrator.executors.kinds import ExecutorKind
    from orchestrator.keys.feature_tables import FeatureTable
    from orchestrator.machine.doctor import Finding
    from orchestrator.machine.topology import Machine


def _executors() -> Iterable[ExecutorKind]:
    from orchestrator.features.slurm.slurm_kind import KIND

    return [KIND]


def _job_file() -> Iterable[FeatureTable]:
    from orchestrator.features.slurm.slurm_settings import TABLE

    return [TABLE]


def _doctor(machine: Machine) -> Iterable[Finding]:
    from orchestrator.features.slurm.slurm_doctor import findings

    return findings(machine)


FEATURE = Feature(
    name="slurm",
    about="The executor slurm: jobs run in batch jobs of Slurm.",
    executors=_executors,
    job_file=_job_file,
    doctor=_doctor,
)
