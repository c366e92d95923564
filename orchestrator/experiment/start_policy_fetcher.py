"""Fetches the policies of jobs that have succeeded for those that start from them (``init =
"job:NAME"``).

A child process reads and examines them as it does with a path as ``init``, one after the other,
while the supervisor goes on. It lives as long as there is something to fetch.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.errors import disk_full_explained
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import Job
from orchestrator.core.messages import ExaminationAnswer, ExaminationRequest
from orchestrator.core.paths import RunPaths
from orchestrator.core.processes.readable import readable
from orchestrator.experiment.examination import (
    examination_requests,
    examining_process,
    preflight,
    side_by_side,
)
from orchestrator.supervisor import job_directory
from orchestrator.supervisor.start_policies import (
    FailedFetch,
    Fetch,
    FetchedPolicy,
    UnfitPolicy,
)


class StartPolicyFetcher:
    """A :class:`~orchestrator.supervisor.start_policies.StartPolicies`; a context manager, which ends
    its child.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._waiting: dict[str, Job] = {}
        """By id of a job whose policy is to be fetched."""
        self._asked: str | None = None
        """That of them whose policy the child examines."""
        self._ready: set[str] = set()
        """Jobs whose policies were fetched in this session."""
        self._repeated: set[str] = set()
        """Jobs whose policies are examined once more, as the child that examined them may have been
        ended by others."""
        self._child: examining_process.Child | None = None

    def __enter__(self) -> StartPolicyFetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def needs(self, job: Job) -> bool:
        if job.spec.init_job is None or job.job_id in self._ready:
            return False
        # With a checkpoint, it resumes from that.
        return not job_directory.checkpointed_steps(self._paths.job(job.job_id))

    def request(self, job: Job) -> None:
        if job.job_id != self._asked:
            self._waiting[job.job_id] = job

    def take(self) -> Sequence[Fetch]:
        job = self._next_job()
        fetched = None if job is None else self._fetch_cleanly(job)
        if fetched is not None:
            del self._waiting[fetched.job_id]
            self._repeated.discard(fetched.job_id)
        if not self._waiting:
            self._end_child()
        return () if fetched is None else [fetched]

    def _next_job(self) -> Job | None:
        """The job whose policy is being examined, or is to be; None if there is none."""
        if self._asked is not None:
            return self._waiting[self._asked]
        return next(iter(self._waiting.values()), None)

    def _fetch_cleanly(self, job: Job) -> Fetch | None:
        """As :meth:`_fetch`, with errors of this job alone as results. Once there is one, nothing is
        left in the staging folder.
        """
        staging = self._paths.staging / f"start-{job.job_id}"
        try:
            fetched = self._fetch(job, staging)
        except OSError as error:
            fetched = FailedFetch(job_id=job.job_id, problem=_problem(job, str(error)))
            self._end_child()
        if fetched is not None:
            _remove_staged(staging)
        return fetched

    def _fetch(self, job: Job, staging: Path) -> Fetch | None:
        """What has become of the policy for ``job``; None while the child examines it.

        :raises DiskFullError: there is no space to write the policy.
        :raises OSError: no child could be started, or the policy not be read or written.
        """
        if self._asked is None:
            self._ask(job, examination_requests.request_for_source(job, self._paths, staging))
        assert self._child is not None
        answer = self._child.answer(can_be_read=bool(readable([self._child])))
        if answer is None:
            return None
        if isinstance(answer, str):
            return self._without_answer(job, self._child, answer, staging)
        self._asked = None
        if answer.process_exits:
            self._end_child()
        preflight.raise_if_disk_full(answer, self._paths.root)
        if answer.problem is not None:
            return UnfitPolicy(job_id=job.job_id, problem=_problem(job, answer.problem))
        return self._put(job, answer, staging)

    def _without_answer(
        self, job: Job, child: examining_process.Child, why: str, staging: Path
    ) -> Fetch | None:
        """The child has ended, or was ended, without an answer; None: another one is to be asked."""
        may_be_blameless = child.may_be_blameless
        may_not_recur = child.was_killed or child.hung
        self._end_child()
        if may_be_blameless and job.job_id not in self._repeated:
            self._repeated.add(job.job_id)
            _remove_staged(staging)
            return None
        problem = _problem(job, why)
        if may_not_recur:
            return FailedFetch(job_id=job.job_id, problem=problem)
        return UnfitPolicy(job_id=job.job_id, problem=problem)

    def _put(self, job: Job, answer: ExaminationAnswer, staging: Path) -> FetchedPolicy:
        """Put the policy that was examined, and fits, into the directory of ``job``.

        :raises OSError: it cannot be read or written.
        """
        assert answer.init_sha256 is not None
        with disk_full_explained(self._paths.root, repeat_call()):
            content = examination_requests.staged_policy(staging).read_bytes()
            init = self._paths.job(job.job_id).init
            # Should it be gone: what else is missing is found, and said, at the launch.
            init.parent.mkdir(parents=True, exist_ok=True)
            write_whole(init, content)
        self._ready.add(job.job_id)
        return FetchedPolicy(
            job_id=job.job_id, sha256=answer.init_sha256, env_steps=answer.init_env_steps
        )

    def _ask(self, job: Job, request: ExaminationRequest) -> None:
        if self._child is not None and not self._child.suits(request):
            self._end_child()
        self._child = self._child or examining_process.Child()
        self._child.ask(request, side_by_side.TIME_LIMIT_S)
        self._asked = job.job_id

    def _end_child(self) -> None:
        self._asked = None
        if self._child is not None:
            self._child.__exit__()
            self._child = None


def _remove_staged(staging: Path) -> None:
    shutil.rmtree(staging, ignore_errors=True)
    examination_requests.staged_policy(staging).unlink(missing_ok=True)


def _problem(job: Job, why: str) -> str:
    return f"cannot start from job {job.spec.init_job}: {why}"
