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
from orchestrator.experiment.examination import preflight
from orchestrator.supervisor import job_directory
from orchestrator.supervisor.start_policies import FetchedPolicy


class StartPolicyFetcher:
    """A :class:`~orchestrator.supervisor.start_policies.StartPolicies`; a context manager, which ends
    its child.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._waiting: dict[str, Job] = {}
        """Jobs whose policies are to be fetched, by id; the child examines the first."""
        self._ready: set[str] = set()
        """Jobs whose policies were fetched in this session."""
        self._repeated: set[str] = set()
        """Jobs whose policies are examined once more, as the child that examined them may have been
        ended by others."""
        self._child: preflight.Child | None = None
        self._is_asked = False

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
        self._waiting.setdefault(job.job_id, job)

    def take(self) -> Sequence[FetchedPolicy]:
        if not self._waiting:
            return ()
        job = next(iter(self._waiting.values()))
        staging = self._paths.staging / f"start-{job.job_id}"
        try:
            answer = self._answer(job, staging)
            if answer is None:
                return ()
            fetched = self._fetch(job, answer, staging)
        except OSError as error:  # of this job alone
            fetched = _unfit(job, str(error))
            self._end_child()
        shutil.rmtree(staging, ignore_errors=True)
        preflight.staged_policy(staging).unlink(missing_ok=True)
        del self._waiting[job.job_id]
        if not self._waiting:
            self._end_child()
        return [fetched]

    def _fetch(self, job: Job, answer: ExaminationAnswer | str, staging: Path) -> FetchedPolicy:
        """Put the policy that was examined into the directory of ``job``, if it fits.

        :raises OSError: it cannot be read or written.
        """
        if isinstance(answer, str):
            return _unfit(job, answer)
        if answer.problem is not None:
            return _unfit(job, answer.problem)
        with disk_full_explained(self._paths.root, repeat_call()):
            content = preflight.staged_policy(staging).read_bytes()
            init = self._paths.job(job.job_id).init
            # Should it be gone: what else is missing is found, and said, at the launch.
            init.parent.mkdir(parents=True, exist_ok=True)
            write_whole(init, content)
        self._ready.add(job.job_id)
        return FetchedPolicy(
            job_id=job.job_id, sha256=answer.init_sha256, env_steps=answer.init_env_steps
        )

    def _answer(self, job: Job, staging: Path) -> ExaminationAnswer | str | None:
        """What the child says about the policy for ``job``, or why it says nothing; None while it
        examines it.

        :raises DiskFullError: there is no space to write the policy.
        :raises OSError: no child could be started.
        """
        if not self._is_asked:
            self._ask(preflight.request_for_source(job, self._paths, staging))
        assert self._child is not None
        answer = self._child.answer(can_be_read=bool(readable([self._child])))
        if answer is None:
            return None
        if isinstance(answer, str):
            is_repeated = self._child.may_be_blameless and job.job_id not in self._repeated
            self._end_child()
            if not is_repeated:
                return answer
            self._repeated.add(job.job_id)
            shutil.rmtree(staging, ignore_errors=True)
            return None
        self._is_asked = False
        if answer.process_exits:
            self._end_child()
        preflight.raise_if_disk_full(answer, self._paths.root)
        return answer

    def _ask(self, request: ExaminationRequest) -> None:
        if self._child is not None and not self._child.suits(request):
            self._end_child()
        self._child = self._child or preflight.Child()
        self._child.ask(request, preflight.TIME_LIMIT_S)
        self._is_asked = True

    def _end_child(self) -> None:
        self._is_asked = False
        if self._child is not None:
            self._child.__exit__()
            self._child = None


def _unfit(job: Job, why: str) -> FetchedPolicy:
    problem = f"cannot start from job {job.spec.init_job}: {why}"
    return FetchedPolicy(job_id=job.job_id, sha256=None, problem=problem)
