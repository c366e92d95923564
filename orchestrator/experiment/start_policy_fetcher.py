"""Fetches the policies of jobs that have succeeded for those that start from them (``init =
"job:NAME"``).

A child process reads and examines them as it does with a path as ``init``, one after the other,
while the supervisor goes on. It lives as long as there is something to fetch.
"""

from __future__ import annotations

import select
import shutil
from collections.abc import Sequence
from pathlib import Path

from orchestrator.core.errors import disk_full_explained
from orchestrator.core.files.atomic_files import write_whole
from orchestrator.core.front_end import repeat_call
from orchestrator.core.job import Job
from orchestrator.core.messages import ExaminationAnswer
from orchestrator.core.paths import RunPaths
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
        return not job_directory.checkpointed_steps(
            self._paths.job(job.job_id)
        )  # with one, it resumes from that

    def request(self, job: Job) -> None:
        self._waiting.setdefault(job.job_id, job)

    def take(self) -> Sequence[FetchedPolicy]:
        if not self._waiting:
            return ()
        job = next(iter(self._waiting.values()))
        staging = self._paths.staging / f"start-{job.job_id}"
        problem = f"cannot start from job {job.spec.init_job}"
        try:
            answer = self._answer(job, staging)
            if answer is None:
                return ()
            if isinstance(answer, str) or answer.problem is not None:
                fetched = FetchedPolicy(
                    job_id=job.job_id, sha256=None, problem=f"{problem}: {_why(answer)}"
                )
            else:
                with disk_full_explained(self._paths.root, repeat_call()):
                    write_whole(
                        self._paths.job(job.job_id).init,
                        preflight.staged_policy(staging).read_bytes(),
                    )
                self._ready.add(job.job_id)
                fetched = FetchedPolicy(job_id=job.job_id, sha256=answer.init_sha256)
        except OSError as error:  # of this job alone
            fetched = FetchedPolicy(job_id=job.job_id, sha256=None, problem=f"{problem}: {error}")
            self._end_child()
        shutil.rmtree(staging, ignore_errors=True)
        preflight.staged_policy(staging).unlink(missing_ok=True)
        del self._waiting[job.job_id]
        if not self._waiting:
            self._end_child()
        return [fetched]

    def _answer(self, job: Job, staging: Path) -> ExaminationAnswer | str | None:
        """What the child says about the policy for ``job``, or why it says nothing; None while it
        examines it.

        :raises DiskFullError: there is no space to write the policy.
        :raises OSError: no child could be started.
        """
        if not self._is_asked:
            request = preflight.request_for_source(job, self._paths, staging)
            if self._child is not None and not self._child.suits(request):
                self._end_child()
            self._child = self._child or preflight.Child()
            self._child.ask(request, preflight.TIME_LIMIT_S)
            self._is_asked = True
        assert self._child is not None
        answer = self._child.answer(readable=bool(select.select([self._child], [], [], 0)[0]))
        if (
            isinstance(answer, str)
            and self._child.may_be_blameless
            and job.job_id not in self._repeated
        ):
            self._repeated.add(job.job_id)
            self._end_child()
            shutil.rmtree(staging, ignore_errors=True)
            return None
        if isinstance(answer, str) or (answer is not None and answer.process_exits):
            self._end_child()
        if isinstance(answer, ExaminationAnswer):
            self._is_asked = False
            preflight.raise_if_disk_full(answer, self._paths.root)
        return answer

    def _end_child(self) -> None:
        self._is_asked = False
        if self._child is not None:
            self._child.__exit__()
            self._child = None


def _why(answer: ExaminationAnswer | str) -> str:
    return answer if isinstance(answer, str) else str(answer.problem)
