"""Which trainings are verified: jobs of a run directory with their own bundles, or those of a job file."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import jobfile
from orchestrator.core.errors import UsageError
from orchestrator.core.job import Job
from orchestrator.core.text import listed
from orchestrator.core.worker_spec import OFF_POLICY
from orchestrator.experiment import run_directory, session
from orchestrator.ledger import Ledger
from orchestrator.supervisor.termination import StopRequests

MOST = 12
"""Jobs that are verified where none are named."""
ENDLESS = 1_000_000
"""Iterations: more than any subject takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A job to be verified. Its spec names the robot as a worker will find it, below its own directory."""

    job: Job
    bundle: Path | None
    """Folder with the robot; None where the job has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    subjects: Sequence[Subject]
    left_out: Mapping[str, str]
    """Why the others are not verified, by ``job_id``; without those that nobody asked for."""


def of_run_dir(run_dir: Path, wanted: Sequence[str]) -> Selection:
    """Jobs as they were trained there: specs from the ledger, robots from the job directories.

    :raises UsageError: not a run directory, a damaged ledger, or no such job.
    """
    paths = run_directory.existing(run_dir)
    ledger = Ledger.open(paths.ledger, read_only=True)
    try:
        jobs = [row.job for row in ledger.jobs()]
    finally:
        ledger.abandon()
    chosen, left_out = choose(jobs, wanted, run_dir)
    subjects = []
    for job in chosen:
        robot = paths.job(job.job_id).robot
        if job.spec.xml is None:
            subjects.append(Subject(job=job, bundle=None))
        elif robot.is_dir():
            subjects.append(Subject(job=job, bundle=robot))
        else:
            left_out[job.job_id] = f"{robot} is not there: it never began, its robot being invalid, or was moved away"
    return Selection(subjects=subjects, left_out=left_out)


def of_job_file(path: Path, wanted: Sequence[str], staging: Path, stops: StopRequests) -> Selection:
    """Jobs as they would be trained now; their robots are examined and bundled below ``staging``.

    :raises SpecError: the job file, or a robot of the chosen jobs, is wrong.
    :raises UsageError: no such job.
    :raises KeyboardInterrupt: when ``stops`` holds one.
    """
    experiment = jobfile.load(path)
    chosen, left_out = choose(experiment.jobs, wanted, path)
    narrowed = dataclasses.replace(experiment, jobs=tuple(chosen), order="as-listed")
    plan = session.plan(narrowed, session.RunOptions(run_dir=staging), staging, stops=stops)
    subjects = [Subject(job=job, bundle=plan.verdicts[job.job_id].bundle) for job in plan.jobs]
    return Selection(subjects=subjects, left_out=left_out)


def choose(jobs: Sequence[Job], wanted: Sequence[str], source: Path) -> tuple[list[Job], dict[str, str]]:
    """The jobs that ``wanted`` names by id, beginning of it or pattern; without, the first of every robot, task and
    number of ranks.

    Also why others are left out, by ``job_id``.

    :raises UsageError: for a name that fits none.
    """
    if wanted:
        named: set[str] = set()
        for name in wanted:
            known = [job.job_id for job in jobs]
            fits = [name] if name in known else [job_id for job_id in known if _fits(job_id, name)]
            if not fits:
                near = difflib.get_close_matches(name, known, n=3)
                others = f"did you mean {' or '.join(near)}?" if near else f"there are {listed(known, 5)}"
                raise UsageError(f"{source}: --jobs {name}: no such job; {others}")
            named.update(fits)
        return [job for job in jobs if job.job_id in named], {}
    first: dict[tuple[object, ...], Job] = {}
    left_out: dict[str, str] = {}
    for job in jobs:
        key = (job.xml_source, job.spec.task, job.spec.env, job.spec.entry_point, job.spec.ranks)
        known_by = first.setdefault(key, job)
        if known_by is not job:
            left_out[job.job_id] = f"has robot and task of {known_by.job_id}"
    chosen = list(first.values())
    left_out |= {job.job_id: f"beyond the first {MOST} robots" for job in chosen[MOST:]}
    return chosen[:MOST], left_out


def _fits(job_id: str, name: str) -> bool:
    return job_id.startswith(name) or fnmatch.fnmatchcase(job_id, name)


def subject_job(job: Job, iterations: int, *, checkpoints: bool, max_retries: int) -> Job:
    """``job``, so many iterations long and without all that follows training; of SAC and TD3 those that learn count.

    :param checkpoints: whether there is one after every iteration, rather than at the end alone.
    """
    waiting = int(job.spec.hyperparameters.get("learning_starts", 100)) if job.spec.algo in OFF_POLICY else 0
    steps = (iterations + waiting // job.spec.steps_an_iteration) * job.spec.steps_an_iteration
    short = dataclasses.replace(
        job.spec, total_timesteps=steps, checkpoint_every=1 if checkpoints else steps, eval_episodes=0, video=False
    )
    return dataclasses.replace(job, spec=short, max_retries=max_retries)


def neighbour_of(subjects: Sequence[Subject], index: int) -> Subject:
    """A copy of one of ``subjects``, of one rank, that trains on and on, until it is ended.

    It asks for as much memory as the greediest of them: where one of these has to wait for memory, so does it.
    """
    model = subjects[index % len(subjects)]
    memory_mib = max(subject.job.resources.all_memory_mib for subject in subjects)
    job_id = f"neighbour-{index}"
    job = subject_job(model.job, ENDLESS, checkpoints=False, max_retries=0)
    job = dataclasses.replace(
        job,
        job_id=job_id,
        spec=dataclasses.replace(job.spec, job_id=job_id, ranks=1),
        resources=dataclasses.replace(job.resources, memory_mib=memory_mib, ranks=1),
    )
    return Subject(job=job, bundle=model.bundle)
