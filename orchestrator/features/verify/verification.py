"""The procedure of ``verify``: each job trained alone, among neighbours, and killed midway and
resumed.

Every job is trained for a few iterations in each way, by the real supervisor in scratch run
directories. The hashes of all weights must be equal. The slow-down among neighbours is measured as
well.
"""

from __future__ import annotations

import dataclasses
import math
import os
import platform
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from orchestrator import jobfile
from orchestrator.core.errors import UsageError, disk_full_explained
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.job import Job
from orchestrator.core.paths import RunPaths
from orchestrator.core.text import count
from orchestrator.experiment import run_directory
from orchestrator.features.verify import verification_runs
from orchestrator.features.verify.cases import (
    Case,
    LeftOut,
    case_job,
    neighbour_of,
    of_job_file,
    of_run_dir,
    waiting_iterations,
)
from orchestrator.features.verify.certificate import (
    FILE,
    SCRATCH,
    Certificate,
    CertifiedJob,
    Evidence,
    judge,
    weights_differ,
)
from orchestrator.features.verify.verification_runs import Kill, ShortTraining
from orchestrator.machine import provenance
from orchestrator.machine import topology as machines
from orchestrator.machine.gpu import FreeGpus
from orchestrator.machine.topology import Machine

ITERATIONS = 6
LEAST_ITERATIONS = 3
"""One iteration before the kill, one after it, and one during which the worker is killed."""
TIME_LIMIT_S = 150.0
"""Time for trainings alone and among neighbours, where no jobs are named; killed ones take about
half as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    jobs: Sequence[str] = ()
    """Ids, beginnings of ids, or patterns; none: the first job of every robot and task, as many as
    time allows."""
    iterations: int = ITERATIONS
    repeats: int = 1
    output: Path | None = None
    """Folder of the certificate; None: the run directory, or ``runs/<name>-verify`` for a job
    file."""


def verify(
    source: Path, options: VerifyOptions, tell: Callable[[str], None]
) -> tuple[Certificate, Path]:
    """Verify jobs of a run directory or a job file. Returns the certificate and the folder that it
    was written to.

    :param tell: called with a line of progress.
    :raises UsageError: for what the user can correct; nothing has been launched.
    :raises DiskFullError: no process is left.
    :raises KeyboardInterrupt: after Ctrl-C; no process is left.
    """
    if options.iterations < LEAST_ITERATIONS:
        text = f"at least {LEAST_ITERATIONS}, so that there is one before the kill and one after it"
        raise UsageError(f"--iterations {options.iterations}: expected {text}")
    is_run_dir = source.is_dir()
    output = options.output or (
        source if is_run_dir else Path("runs") / f"{jobfile.load(source).directory_name}-verify"
    )
    with (
        run_directory.claim(output.absolute() / SCRATCH) as scratch,
        disk_full_explained(scratch.root, "run the same command again"),
    ):
        if scratch.ledger.exists():
            raise UsageError(
                f"{scratch.root}: holds an experiment, which `verify` would remove, as it works in"
                " this folder; choose another --output"
            )
        for entry in scratch.root.iterdir():
            if entry.is_dir():  # of an earlier verification
                shutil.rmtree(entry)
        if is_run_dir:
            cases, left_out = of_run_dir(source, options.jobs)
        else:
            scratch.staging.mkdir()
            cases, left_out = of_job_file(source, options.jobs, scratch.staging)
        if not cases:
            why = "; ".join(f"{job_id}: {text}" for job_id, text in left_out.items())
            raise UsageError(f"{source}: no job can be verified{f' ({why})' if why else ''}")
        certificate = _Verification(cases, left_out, options, scratch, tell).run()
        write_whole(output / FILE, certificate.to_json())
        shutil.rmtree(scratch.staging, ignore_errors=True)
        if certificate.verdict == "PASS":
            shutil.rmtree(scratch.root)
    return certificate, output


@dataclass(slots=True)
class _Verification:
    cases: list[Case]
    left_out: LeftOut
    options: VerifyOptions
    scratch: RunPaths
    tell: Callable[[str], None]
    machine: Machine = field(init=False)
    jobs_at_once: int = field(init=False)
    """Among neighbours."""
    warnings: dict[str, None] = field(default_factory=dict, init=False)
    evidence: dict[str, Evidence] = field(init=False)

    def __post_init__(self) -> None:
        jobs = [case.job for case in self.cases]
        self.evidence = {job.job_id: Evidence(is_foreign=job.spec.task is None) for job in jobs}
        self.machine = machines.detect(with_gpus=any(job.resources.gpus for job in jobs))
        self.jobs_at_once = max(2, self.machine.capacity)
        if self.machine.capacity < 2:  # there must be a neighbour: two trainings share the one core
            self.machine = dataclasses.replace(self.machine, quota=None)

    def run(self) -> Certificate:
        begun = time.monotonic()
        started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for repeat in range(self.options.repeats):
            deadline = begun + TIME_LIMIT_S if repeat == 0 and not self.options.jobs else math.inf
            groups = verification_runs.groups(self.cases, self._has_room)
            if repeat == 0:
                self._tell_what_is_due(groups, deadline)
            for number, group in enumerate(groups):
                if number and time.monotonic() > deadline:
                    why = f"the time limit of {TIME_LIMIT_S:g} s was reached; --jobs NAME verifies it without a limit"
                    self.left_out |= {case.job.job_id: why for case in group}
                    continue
                self._compare(group, f"{repeat}-{number}")
                if repeat == number == 0 and len(groups) > 1 and deadline < math.inf:
                    self._tell_what_fits(groups, time.monotonic() - begun)
            self.cases = [case for case in self.cases if case.job.job_id not in self.left_out]
            self._train_killed(self.cases, repeat)
        verdicts = [self._judge(case) for case in self.cases]
        has_passed = bool(verdicts) and all(one.verdict == "PASS" for one in verdicts)
        return Certificate(
            verdict="PASS" if has_passed else "FAIL",
            jobs=verdicts,
            left_out=self.left_out,
            iterations=self.options.iterations,
            repeats=self.options.repeats,
            lanes=self.jobs_at_once,
            warnings=list(self.warnings),
            machine={
                "platform": platform.platform(),
                "cpus": len(self.machine.cpus),
                "physical_cores": self.machine.physical_cores,
                "cpu_quota": self.machine.quota,
                "memory_total_mib": self.machine.memory_total_mib,
                "gpus": [dataclasses.asdict(gpu) for gpu in self.machine.gpus],
                "versions": provenance.versions(),
            },
            started_at=started_at,
            took_s=round(time.monotonic() - begun, 3),
        )

    def _tell_what_is_due(self, groups: Sequence[Sequence[Case]], deadline: float) -> None:
        text = f"To be verified: {count(len(self.cases), 'job')} in {count(len(groups), 'group')}"
        limit = f"; after {TIME_LIMIT_S:g} s no further group is begun, and its jobs are named as left out"
        self.tell(text + (limit if deadline < math.inf and len(groups) > 1 else ""))

    def _tell_what_fits(self, groups: Sequence[Sequence[Case]], first_s: float) -> None:
        """:param first_s: how long the first group took alone and among neighbours."""
        left_s = max(0.0, TIME_LIMIT_S - first_s)
        fit = min(len(groups), 1 + math.ceil(left_s / max(0.001, first_s)))
        jobs = sum(map(len, groups[:fit]))
        text = f"The first group took {first_s:.0f} s: about {jobs} of {len(self.cases)} jobs fit into the time limit"
        self.tell(text + ("; --jobs NAME verifies others" if fit < len(groups) else ""))

    def _compare(self, group: Sequence[Case], name: str) -> None:
        """Train alone and among neighbours in close succession, so that drift is not taken for
        slow-down.
        """
        names = ", ".join(case.job.job_id for case in group)
        self.tell(f"Training alone: {names}")
        alone = self._train(f"alone-{name}", group, 1)
        self.tell(f"Training among neighbours, {self.jobs_at_once} at once: {names}")
        together = self._train(
            f"together-{name}", group, self.jobs_at_once, neighbours=self.jobs_at_once - 1
        )
        for job_id in alone:
            self.evidence[job_id].alone.append(alone[job_id])
            self.evidence[job_id].together.append(together[job_id])

    def _train_killed(self, cases: Sequence[Case], repeat: int) -> None:
        self.tell(
            f"Training, killed midway and resumed: {', '.join(case.job.job_id for case in cases)}"
        )
        rng = random.Random(os.urandom(8))
        middle = (self.options.iterations + 1) // 2
        kills = {}
        for job in (case.job for case in cases):
            iteration_s = median(self.evidence[job.job_id].alone[-1].iteration_s or (0.0,))
            iterations = waiting_iterations(job) + middle
            kills[job.job_id] = Kill(iterations=iterations, delay_s=rng.uniform(0.0, iteration_s))
        killed = self._train(f"resumed-{repeat}", cases, self.machine.capacity, kills=kills)
        # A training with very short iterations may end before it is killed: repeat it, killed right
        # after a checkpoint.
        missed = [
            case
            for case in cases
            if not (killed[case.job.job_id].was_killed or killed[case.job.job_id].problem)
        ]
        if missed:
            jobs = [case.job for case in missed]
            kills = {
                job.job_id: Kill(iterations=waiting_iterations(job) + 2, delay_s=0.0)
                for job in jobs
            }
            killed |= self._train(
                f"resumed-{repeat}-early", missed, self.machine.capacity, kills=kills
            )
        for job_id, one in killed.items():
            self.evidence[job_id].resumed.append(one)

    def _train(
        self,
        name: str,
        cases: Sequence[Case],
        jobs_at_once: int,
        *,
        neighbours: int = 0,
        kills: dict[str, Kill] | None = None,
    ) -> dict[str, ShortTraining]:
        """Train shortened ``cases``, so many at once, with checkpoints and a retry where they are
        killed.
        """
        jobs = [
            case_job(case.job, self.options.iterations, to_be_killed=kills is not None)
            for case in cases
        ]
        short = [dataclasses.replace(case, job=job) for case, job in zip(cases, jobs, strict=True)]
        return verification_runs.train(
            self.scratch.root / name,
            short,
            jobs_at_once=jobs_at_once,
            neighbours=[neighbour_of(short, index) for index in range(neighbours)],
            kills=kills or {},
            tell=self._warn,
        )

    def _judge(self, case: Case) -> CertifiedJob:
        job_id = case.job.job_id
        evidence = self.evidence[job_id]
        if weights_differ(evidence):
            self.tell(
                f"Training {job_id} alone again, to tell the effect of neighbours from randomness"
            )
            evidence.again = self._train(f"again-{job_id}", [case], 1)[job_id]
        return judge(job_id, evidence)

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.tell(f"warning: {text}")
        self.warnings[text] = None

    def _has_room(self, jobs: Sequence[Job]) -> bool:
        """Whether all ``jobs`` get a slot at once; memory is checked when they start."""
        cores = sum(job.resources.all_cores for job in jobs)
        gpus = FreeGpus(gpu.index for gpu in self.machine.gpus)
        for job in jobs:
            if (names := gpus.find(job.resources.all_gpus)) is None:
                return False
            gpus.change(names, job.resources.all_gpus, -1)
        return len(jobs) <= self.jobs_at_once and cores <= self.jobs_at_once
