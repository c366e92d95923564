"""Cases of a verification: jobs of a run directory with their robot bundles, or jobs of a job
file.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import jobfile
from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.job_patterns import matching_jobs
from orchestrator.core.robot_hash import alteration
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import OFF_POLICY
from orchestrator.examination import preflight
from orchestrator.examination.preflight import JobVerdict
from orchestrator.executors.local import problems_on
from orchestrator.experiment import run_directory
from orchestrator.machine import topology
from orchestrator.server.verdicts import examined_job, judged, refuse_invalid

MAX_CASES = 12
"""Most jobs that are verified where none are named."""
ENDLESS = 1_000_000
"""Iterations of a neighbour: more than any case takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job to be verified. Its spec gives the path of the robot relative to the job directory, as
    for a worker.
    """

    job: Job
    bundle: Path | None
    """Folder with the robot; None where the job has none."""
    init: Path | None = None
    """The policy that its training starts from."""
    robot_hash: str | None = None

    @property
    def verdict(self) -> JobVerdict:
        """The robot needs no other examination than that by which it came here."""
        has_policy = self.init is not None and self.job.spec.init_sha256 is not None
        xml = self.job.spec.xml
        return JobVerdict(
            bundle=self.bundle,
            xml=None if xml is None else xml.removeprefix("robot/"),
            robot_hash=self.robot_hash,
            init=self.init if has_policy else None,
            init_sha256=self.job.spec.init_sha256,
            init_env_steps=self.job.spec.init_env_steps,
        )


LeftOut = dict[str, str]
"""``job_id`` → why a job is not verified; without jobs that ``--jobs`` does not name."""


def of_run_dir(run_dir: Path, names: Sequence[str]) -> tuple[list[Case], LeftOut]:
    """Jobs as they were trained in ``run_dir``: specs from the ledger, robots from the job
    directories.

    :raises UsageError: not a run directory, a damaged ledger, or no such job.
    """
    paths = run_directory.existing_run(run_dir)
    with run_directory.reading_ledger(paths) as ledger:
        rows = ledger.jobs()
    chosen, left_out = choose([row.job for row in rows], names, run_dir)
    hashes = {row.job_id: row.robot_hash for row in rows}
    cases = []
    for job in chosen:
        directory = paths.job(job.job_id)
        xml = job.spec.xml
        if job.spec.init_job is not None and not directory.init.is_file():
            left_out[job.job_id] = (
                f"{directory.init} is missing: job {job.spec.init_job} has to succeed first"
            )
        elif xml is not None and not directory.robot.is_dir():
            text = (
                f"{directory.robot} is missing: the robot was invalid, or the folder has been moved"
            )
            left_out[job.job_id] = text
        elif (altered := alteration(directory, xml, hashes[job.job_id])) is not None:
            left_out[job.job_id] = f"{altered}; restore them, as another robot would be verified"
        else:
            cases.append(
                Case(
                    job=job,
                    bundle=None if xml is None else directory.robot,
                    init=directory.init,
                    robot_hash=hashes[job.job_id],
                )
            )
    return cases, left_out


def of_job_file(path: Path, names: Sequence[str], staging: Path) -> tuple[list[Case], LeftOut]:
    """Jobs as a run would train them now; their robots are examined and bundled below ``staging``.

    :raises SpecError: the job file, or a robot of the chosen jobs, is invalid.
    :raises UsageError: no such job, or the jobs are made as the run goes on.
    """
    experiment = jobfile.load(path)
    if (maker := experiment.job_maker) is not None:
        what = f"a {maker.noun} makes its jobs as it runs, so that none can be verified before"
        raise UsageError(f"{path}: {what}; `run` it, and give `verify` its run directory")
    chosen, left_out = choose(experiment.jobs, names, path)
    for job in chosen:
        if job.spec.init_job is not None:
            advice = "run the job file, and verify its run directory"
            left_out[job.job_id] = f"it starts from the policy of job {job.spec.init_job}; {advice}"
    chosen = [job for job in chosen if job.job_id not in left_out]
    machine = topology.detect(with_gpus=any(job.resources.gpus for job in chosen))
    verdicts, problems = judged(
        chosen,
        preflight.examine(chosen, staging=staging, processes=machine.capacity),
        lambda job: problems_on(machine, job),
        {},
    )
    refuse_invalid(experiment.source, chosen, verdicts, problems, skip_invalid=False)
    cases = []
    for job in chosen:
        verdict = verdicts[job.job_id]
        cases.append(
            Case(
                job=examined_job(job, verdict),
                bundle=verdict.bundle,
                init=verdict.init,
                robot_hash=verdict.robot_hash,
            )
        )
    return cases, left_out


def choose(jobs: Sequence[Job], names: Sequence[str], source: Path) -> tuple[list[Job], LeftOut]:
    """The jobs to verify, and by ``job_id`` why others are left out.

    :param names: ids, beginnings of ids, or patterns; none: the first job of every robot, task or
        environment with its arguments, and number of ranks.
    :raises UsageError: a name matches no job.
    """
    if names:
        return _named_jobs(jobs, names, source), {}
    first: dict[tuple[object, ...], Job] = {}
    left_out: dict[str, str] = {}
    for job in jobs:
        spec = job.spec
        arguments = json.dumps([spec.params, spec.env_kwargs], sort_keys=True, default=str)
        robot = (job.xml_source, spec.robot_maker)
        key = (*robot, spec.task, spec.env, spec.entry_point, arguments, spec.ranks)
        representative = first.setdefault(key, job)
        if representative is not job:
            left_out[job.job_id] = f"has the same robot and task as {representative.job_id}"
    chosen = list(first.values())
    left_out |= {
        job.job_id: f"not among the first {MAX_CASES} robots" for job in chosen[MAX_CASES:]
    }
    return chosen[:MAX_CASES], left_out


def _named_jobs(jobs: Sequence[Job], names: Sequence[str], source: Path) -> list[Job]:
    """:raises UsageError: a name matches no job."""
    job_ids = [job.job_id for job in jobs]
    matches: set[str] = set()
    for name in names:
        found = matching_jobs(name, job_ids)
        if not found:
            near = difflib.get_close_matches(name, job_ids, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"valid: {listed(job_ids, 5)}"
            raise UsageError(f"{source}: --jobs {name}: no such job; {hint}")
        matches.update(found)
    return [job for job in jobs if job.job_id in matches]


def waiting_iterations(job: Job) -> int:
    """Iterations before an off-policy algorithm begins to learn; 0 for others."""
    default = 100 if job.spec.algo in OFF_POLICY else 0
    waiting = int(job.spec.hyperparameters.get("learning_starts", default))
    return waiting // job.spec.steps_an_iteration


def case_job(job: Job, iterations: int, *, to_be_killed: bool = False) -> Job:
    """``job``, shortened to ``iterations``, without evaluation and without the rung at which it
    would pause; off-policy algorithms count iterations that learn.

    :param to_be_killed: whether it has a retry, and a checkpoint after every iteration rather than
        only at the end.
    """
    steps = (waiting_iterations(job) + iterations) * job.spec.steps_an_iteration
    short = dataclasses.replace(
        job.spec,
        total_timesteps=steps,
        pause_at=None,
        checkpoint_every=1 if to_be_killed else steps,
        checkpoint_every_s=None,
        eval_episodes=0,
        video=False,
        after=(),
    )
    resources = job.resources.for_measurement()
    return dataclasses.replace(job, spec=short, resources=resources, max_retries=int(to_be_killed))


def neighbour_of(cases: Sequence[Case], index: int) -> Case:
    """A copy of one of ``cases``, with one rank, that trains until it is ended.

    It requests as much memory as the largest of them, so that it never takes the place of a case.
    """
    model = cases[index % len(cases)]
    memory_mib = max(case.job.resources.all_memory_mib for case in cases)
    job_id = f"neighbour-{index}"
    job = case_job(model.job, ENDLESS)
    job = dataclasses.replace(
        job,
        job_id=job_id,
        spec=dataclasses.replace(job.spec, job_id=job_id, ranks=1),
        resources=dataclasses.replace(job.resources, memory_mib=memory_mib, ranks=1),
    )
    return dataclasses.replace(model, job=job)
